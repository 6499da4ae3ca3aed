//! A real Chromium, driven over its own debugging pipe: JSON with a zero byte behind each message, so that
//! neither a port nor a WebSocket is needed.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use harness::toolchain;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// One answer of the browser.
const ANSWER_MAX: Duration = Duration::from_secs(30);
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// The program, where it is installed: `MANIFOLD_CHROMIUM`, or one of the `PATH`.
pub(super) fn program() -> Option<PathBuf> {
    if let Some(given) = std::env::var_os("MANIFOLD_CHROMIUM") {
        return Some(PathBuf::from(given));
    }
    NAMES.iter().find_map(|name| toolchain::on_path(name))
}

/// One browser with one page. Dropping it ends it.
pub(super) struct Browser {
    _child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    id: u64,
    session: String,
    /// What the console has complained of: the source, and the text.
    pub(super) complaints: Vec<(String, String)>,
}

impl Browser {
    pub(super) async fn start(program: &Path, profile: &Path) -> Result<Self> {
        let mut child = Command::new("sh")
            // The pipe's two ends are the files 3 and 4.
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null"])
            .arg(program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu"])
            .args(["--remote-debugging-pipe", "--no-first-run"])
            .args(["--disable-dev-shm-usage", "--hide-scrollbars"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("chromium")?;
        let to = child.stdin.take().context("no way to the browser")?;
        let from = BufReader::new(child.stdout.take().context("no way from the browser")?);
        let mut browser = Self {
            _child: child,
            to,
            from,
            id: 0,
            session: String::new(),
            complaints: Vec::new(),
        };
        let target = json!({"url": "about:blank"});
        let target = browser.call("Target.createTarget", target).await?;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach).await?;
        browser.session = session["sessionId"].as_str().unwrap_or_default().to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({})).await?;
        }
        Ok(browser)
    }

    async fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.id += 1;
        let mut message = json!({"id": self.id, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).await?;
        loop {
            let mut read = Vec::new();
            let reading = self.from.read_until(0, &mut read);
            let count = tokio::time::timeout(ANSWER_MAX, reading)
                .await
                .with_context(|| format!("{method}: the browser does not answer"))??;
            ensure!(count > 0, "{method}: the browser has ended");
            read.pop();
            let said: Value = serde_json::from_slice(&read)?;
            if said["id"] == self.id {
                if let Some(error) = said.get("error") {
                    bail!("{method}: {error}");
                }
                return Ok(said["result"].clone());
            }
            self.note(&said);
        }
    }

    fn note(&mut self, said: &Value) {
        let params = &said["params"];
        let (source, text) = match said["method"].as_str() {
            Some("Runtime.exceptionThrown") => {
                ("exception", params["exceptionDetails"].to_string())
            }
            Some("Runtime.consoleAPICalled")
                if ["error", "warning"].contains(&params["type"].as_str().unwrap_or_default()) =>
            {
                ("console", params["args"].to_string())
            }
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                let source = params["entry"]["source"].as_str().unwrap_or_default();
                (source, params["entry"].to_string())
            }
            _ => return,
        };
        self.complaints.push((source.to_owned(), text));
    }

    /// The window's width and height, and the scheme of colours.
    pub(super) async fn resize(&mut self, width: u32, height: u32, scheme: &str) -> Result<()> {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", size)
            .await?;
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        let media = json!({"media": "screen", "features": features});
        self.call("Emulation.setEmulatedMedia", media).await?;
        Ok(())
    }

    pub(super) async fn open(&mut self, url: &str) -> Result<()> {
        let opened = self.call("Page.navigate", json!({"url": url})).await?;
        ensure!(opened.get("errorText").is_none(), "{url}: {opened}");
        Ok(())
    }

    /// The value of an expression in the page.
    pub(super) async fn value(&mut self, expression: &str) -> Result<Value> {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", params).await?;
        if let Some(thrown) = answer.get("exceptionDetails") {
            bail!("{expression}: {thrown}");
        }
        Ok(answer["result"]["value"].clone())
    }

    /// Presses a key that writes nothing, as `Enter` or `ArrowLeft`.
    pub(super) async fn press(&mut self, key: &str, code: u32) -> Result<()> {
        for kind in ["rawKeyDown", "char", "keyUp"] {
            let mut event =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            match (kind, key) {
                ("char", "Enter") => event["text"] = json!("\r"),
                ("char", _) => continue,
                _ => {}
            }
            self.call("Input.dispatchKeyEvent", event).await?;
        }
        Ok(())
    }

    /// The page as a PNG, down to this height.
    pub(super) async fn picture(&mut self, width: u32, height: u32) -> Result<Vec<u8>> {
        let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
        let params = json!({"format": "png", "clip": clip, "captureBeyondViewport": true});
        let answer = self.call("Page.captureScreenshot", params).await?;
        let data = answer["data"].as_str().context("no picture")?;
        Ok(STANDARD.decode(data)?)
    }
}
