//! The way to an API server behind a proxy: `proxy-url` of a kubeconfig, or `HTTPS_PROXY`, `HTTP_PROXY` and
//! `NO_PROXY`.

use base64::Engine as _;
use http::{HeaderValue, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use percent_encoding::percent_decode_str;

use crate::ConnectError;

/// How the server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Direct,
    /// CONNECT, by plain HTTP or by TLS to the proxy itself, which is what the address's scheme says.
    Connect {
        proxy: Uri,
        authorization: Option<HeaderValue>,
    },
    /// Names are resolved by the proxy, as in Go.
    Socks5 {
        proxy: Uri,
        user: Option<(String, String)>,
    },
}

/// Without user and password, for messages.
pub(crate) fn shown(proxy: &Uri) -> String {
    let scheme = proxy.scheme_str().unwrap_or("http");
    let port = proxy
        .port()
        .map_or_else(String::new, |port| format!(":{port}"));
    format!("{scheme}://{}{port}", proxy.host().unwrap_or_default())
}

/// What a proxy's address means.
pub(crate) fn way(proxy: Option<&Uri>) -> Result<Way, ConnectError> {
    let Some(proxy) = proxy else {
        return Ok(Way::Direct);
    };
    let wrong = |reason: &str| ConnectError::Proxy {
        proxy: shown(proxy),
        reason: reason.to_owned(),
    };
    let host = proxy.host().filter(|host| !host.is_empty());
    let host = host.ok_or_else(|| wrong("it has no host"))?;
    let user = proxy.authority().and_then(|authority| {
        let (user, _) = authority.as_str().rsplit_once('@')?;
        let (name, password) = user.split_once(':').unwrap_or((user, ""));
        let plain = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
        Some((plain(name), plain(password)))
    });
    let address = |scheme: &str, default: u16| {
        let port = proxy.port_u16().unwrap_or(default);
        let address = format!("{scheme}://{host}:{port}/");
        address
            .parse::<Uri>()
            .map_err(|why| wrong(&why.to_string()))
    };
    match proxy.scheme_str() {
        Some(scheme @ ("http" | "https")) => {
            let authorization = user.map(|(name, password)| {
                let text =
                    base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}"));
                HeaderValue::from_str(&format!("Basic {text}"))
            });
            let mut authorization = authorization
                .transpose()
                .map_err(|why| wrong(&why.to_string()))?;
            if let Some(authorization) = &mut authorization {
                authorization.set_sensitive(true);
            }
            let default = if scheme == "http" { 80 } else { 443 };
            Ok(Way::Connect {
                proxy: address(scheme, default)?,
                authorization,
            })
        }
        Some("socks5" | "socks5h") => Ok(Way::Socks5 {
            proxy: address("http", 1080)?,
            user,
        }),
        other => {
            let other = other.unwrap_or_default();
            Err(wrong(&format!(
                "unsupported scheme {other:?}, must be http, https, or socks5"
            )))
        }
    }
}

/// The proxy that the environment names for a server: `HTTPS_PROXY` or `HTTP_PROXY` by the server's scheme,
/// in capitals or not, unless `NO_PROXY` excepts it. This host is never reached by a proxy. As Go's
/// `http.ProxyFromEnvironment`, but that `.example.com` excepts `example.com` too.
///
/// # Errors
/// Naming the variable whose value is no address.
pub fn from_environment(
    server: &Uri,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Uri>, String> {
    let name = match server.scheme_str() {
        Some("https") => "HTTPS_PROXY",
        _ => "HTTP_PROXY",
    };
    let set = |name: &str| {
        let value = variable(name).filter(|value| !value.is_empty());
        value.or_else(|| variable(&name.to_ascii_lowercase()).filter(|value| !value.is_empty()))
    };
    let (Some(proxy), Some(host)) = (set(name), server.host()) else {
        return Ok(None);
    };
    let bare = host.trim_matches(['[', ']']);
    let is_own = bare == "localhost"
        || bare
            .parse()
            .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    if is_own {
        return Ok(None);
    }
    let port = server
        .port_u16()
        .unwrap_or(if name == "HTTPS_PROXY" { 443 } else { 80 });
    let excepted = set("NO_PROXY").unwrap_or_default();
    // The matcher has no ports.
    let excepted: Vec<&str> = excepted
        .split(',')
        .map(str::trim)
        .filter_map(|entry| match entry.rsplit_once(':') {
            Some((host, of)) if !host.contains(':') || host.ends_with(']') => {
                (of.parse() == Ok(port)).then_some(host.trim_matches(['[', ']']))
            }
            _ => Some(entry),
        })
        .collect();
    let matcher = Matcher::builder()
        .all("http://proxy")
        .no(excepted.join(","))
        .build();
    if matcher.intercept(server).is_none() {
        return Ok(None);
    }
    let full = match proxy.contains("://") {
        true => proxy,
        false => format!("http://{proxy}"),
    };
    match full.parse::<Uri>() {
        Ok(proxy) if proxy.host().is_some() => Ok(Some(proxy)),
        _ => Err(format!("{name} is no URL: give one as http://host:port")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_a_proxy_says_how_it_is_spoken_to() {
        let way = |text: &str| way(Some(&text.parse().unwrap()));
        let connect = |proxy: &str, authorization: Option<&'static str>| Way::Connect {
            proxy: proxy.parse().unwrap(),
            authorization: authorization.map(HeaderValue::from_static),
        };
        assert_eq!(super::way(None).unwrap(), Way::Direct);
        for (text, wanted) in [
            ("http://proxy", connect("http://proxy:80/", None)),
            ("https://proxy", connect("https://proxy:443/", None)),
            (
                "http://[fd00::1]:3128",
                connect("http://[fd00::1]:3128/", None),
            ),
            (
                "http://Aladdin:open%20sesame@proxy:3128",
                connect(
                    "http://proxy:3128/",
                    Some("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
                ),
            ),
            (
                "socks5://proxy",
                Way::Socks5 {
                    proxy: "http://proxy:1080/".parse().unwrap(),
                    user: None,
                },
            ),
            (
                "socks5://u:p@proxy:9",
                Way::Socks5 {
                    proxy: "http://proxy:9/".parse().unwrap(),
                    user: Some(("u".to_owned(), "p".to_owned())),
                },
            ),
        ] {
            assert_eq!(way(text).unwrap(), wanted, "{text}");
        }
        let why = way("ftp://user:secret@proxy").unwrap_err().to_string();
        assert!(
            why.contains("unsupported scheme \"ftp\", must be http, https, or socks5"),
            "{why}"
        );
        assert!(
            why.contains("ftp://proxy") && !why.contains("secret"),
            "{why}"
        );
    }

    #[test]
    fn the_environment_names_a_proxy_as_in_go() {
        for (server, variables, wanted) in [
            ("https://a.test:6443", vec![], None),
            (
                "https://a.test:6443",
                vec![("HTTPS_PROXY", "http://p:1")],
                Some("http://p:1/"),
            ),
            (
                "https://a.test:6443",
                vec![("https_proxy", "p:1")],
                Some("http://p:1/"),
            ),
            (
                "https://a.test:6443",
                vec![("HTTP_PROXY", "http://p:1")],
                None,
            ),
            (
                "http://a.test",
                vec![("HTTP_PROXY", "http://p:1")],
                Some("http://p:1/"),
            ),
            (
                "https://a.test",
                vec![("HTTPS_PROXY", "http://p:1"), ("NO_PROXY", "test")],
                None,
            ),
            (
                "https://a.test",
                vec![("HTTPS_PROXY", "http://p:1"), ("NO_PROXY", "*")],
                None,
            ),
            (
                "https://10.1.2.3",
                vec![("HTTPS_PROXY", "http://p:1"), ("no_proxy", "x, 10.0.0.0/8")],
                None,
            ),
            (
                "https://a.test:6443",
                vec![("HTTPS_PROXY", "http://p:1"), ("NO_PROXY", "a.test:6443")],
                None,
            ),
            (
                "https://a.test:6443",
                vec![("HTTPS_PROXY", "http://p:1"), ("NO_PROXY", "a.test:1")],
                Some("http://p:1/"),
            ),
            (
                "https://[fd00::1]:6443",
                vec![("HTTPS_PROXY", "http://p:1"), ("NO_PROXY", "fd00::/8")],
                None,
            ),
            (
                "https://localhost:6443",
                vec![("HTTPS_PROXY", "http://p:1")],
                None,
            ),
            (
                "https://127.0.0.1:6443",
                vec![("HTTPS_PROXY", "http://p:1")],
                None,
            ),
            (
                "https://[::1]:6443",
                vec![("HTTPS_PROXY", "http://p:1")],
                None,
            ),
        ] {
            let variable = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let got = from_environment(&server.parse().unwrap(), variable).unwrap();
            let got = got.map(|proxy| proxy.to_string());
            assert_eq!(got.as_deref(), wanted, "{server} {variables:?}");
        }
        let broken = from_environment(&"https://a.test".parse().unwrap(), |_| {
            Some("http://".to_owned())
        });
        assert!(broken.unwrap_err().starts_with("HTTPS_PROXY is no URL"));
    }
}
