//! The live page's files and streams.

use super::*;
use crate::http::page::STREAMS_MAX;

/// Bytes of the whole page.
const PAGE_BYTES_MAX: usize = 100_000;
/// Lines of its one script.
const SCRIPT_LINES_MAX: usize = 300;

async fn got(router: &Router, path: &str) -> Response {
    let request = Request::builder()
        .uri(path)
        .header("authorization", "Bearer good")
        .body(Body::empty())
        .unwrap();
    router.clone().oneshot(request).await.unwrap()
}

async fn text_of(response: Response) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn served(stop: &CancellationToken) -> Router {
    router(sources(&[]), Streams::new(stop.clone()))
}

#[tokio::test]
async fn the_page_is_small_and_runs_nothing_but_its_own_files() {
    let router = served(&CancellationToken::new());
    let mut bytes = 0;
    for (path, kind) in [
        ("/debug/page/", "text/html; charset=utf-8"),
        ("/debug/page/page.css", "text/css; charset=utf-8"),
        ("/debug/page/page.js", "text/javascript; charset=utf-8"),
        ("/debug/page/icon.svg", "image/svg+xml; charset=utf-8"),
    ] {
        let response = got(&router, path).await;
        assert_eq!(response.status().as_u16(), 200, "{path}");
        let headers = response.headers().clone();
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(headers["content-type"], kind);
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(headers["cache-control"], "no-cache, private");
        let text = text_of(response).await;
        if path.ends_with(".js") {
            let lines = text.lines().count();
            assert!(lines <= SCRIPT_LINES_MAX, "{lines} lines");
            assert!(!text.contains("innerHTML"), "texts are no markup");
        }
        if path.ends_with('/') {
            for inline in ["<style", "style=", "onclick=", "<script>", "://"] {
                assert!(!text.contains(inline), "{inline}");
            }
        }
        bytes += text.len();
    }
    assert!(bytes <= PAGE_BYTES_MAX, "{bytes} bytes");
    let response = got(&router, "/debug/page").await;
    assert_eq!(response.headers()["location"], "page/");
}

#[tokio::test]
async fn the_page_is_for_those_who_may_get_its_path() {
    let sources = sources(&[]);
    for path in ["", "/", "/page.js", "/live"] {
        let path = format!("/debug/page{path}");
        assert_eq!(ask(&sources, "GET", &path, None, "").await.0, 403, "{path}");
        let bad = ask(&sources, "GET", &path, Some("bad"), "").await;
        assert_eq!(bad.0, 401, "{path}");
    }
    let posted = ask(&sources, "POST", "/debug/page/live", Some("good"), "").await;
    assert_eq!(posted.0, 405);
}

#[tokio::test]
async fn streams_are_counted_and_end_with_the_port() {
    let stop = CancellationToken::new();
    let router = served(&stop);
    let mut open = Vec::new();
    for _ in 0..STREAMS_MAX {
        let response = got(&router, "/debug/page/live").await;
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        open.push(response);
    }
    let refused = got(&router, "/debug/page/live").await;
    assert_eq!(refused.status().as_u16(), 429);
    assert_eq!(refused.headers()["retry-after"], "10");
    assert!(refused.headers().contains_key("content-security-policy"));
    // Health is answered all the same.
    assert_eq!(got(&router, "/healthz").await.status().as_u16(), 200);
    drop(open.pop());
    open.push(got(&router, "/debug/page/live").await);
    assert_eq!(open.last().unwrap().status().as_u16(), 200);
    stop.cancel();
    for response in open {
        let text = text_of(response).await;
        assert!(
            text.contains("retry:1000") || text.contains("retry: 1000"),
            "{text}"
        );
        assert!(!text.contains("number\":3"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_lasts_beyond_the_time_of_an_answer_and_not_for_ever() {
    let router = served(&CancellationToken::new());
    let response = got(&router, "/debug/page/live").await;
    let begun = tokio::time::Instant::now();
    let text = text_of(response).await;
    let lasted = begun.elapsed();
    assert!(lasted > 10 * ANSWER_MAX, "{lasted:?}");
    assert!(lasted < Duration::from_secs(700), "{lasted:?}");
    for part in ["event: state", "data: {\"number\":2}"] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test]
async fn a_connection_with_a_stream_gives_way_to_nobody() {
    let dir = std::env::temp_dir().join(format!("manifold-port-{}", uuid::Uuid::new_v4()));
    let given = format!("--cert-dir={}", dir.display());
    let (address, stop, task) = started(sources(&[&given])).await;
    let request = "GET /debug/page/live HTTP/1.1\r\nHost: localhost\r\n\
                   Authorization: Bearer good\r\n\r\n";
    let mut stream = connected(address, &dir).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains("{\"number\":2}") {
        assert!(stream.read_buf(&mut read).await.unwrap() > 0, "it ended");
    }
    let healthy = "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let answer = over_tls(address, &dir, healthy).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    stop.cancel();
    let mut rest = Vec::new();
    // The server may end without TLS's goodbye.
    let _ = stream.read_to_end(&mut rest).await;
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.ends_with("0\r\n\r\n"), "it was cut off: {rest}");
    task.await.unwrap().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}
