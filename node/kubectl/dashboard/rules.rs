//! What the dashboard's port lets through: pure.
//!
//! The port forwards with the user's credentials, so a page of another site, and other users of the machine,
//! must not get through it. The name under which it is reached is checked against DNS rebinding, the origin
//! against other sites, and the path begins with a word that is printed to the user alone.

/// What the page needs.
const PATHS: &[&str] = &[
    "/debug/page/",
    "/debug/page/page.css",
    "/debug/page/page.js",
    "/debug/page/icon.svg",
    "/debug/page/live",
    "/debug/explain",
];

/// A request as far as it matters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// As in `GET`.
    pub method: &'a str,
    /// Without the query.
    pub path: &'a str,
    /// The header `Host`.
    pub host: Option<&'a str>,
    /// The header `Origin`.
    pub origin: Option<&'a str>,
    /// The header `Sec-Fetch-Site`.
    pub site: Option<&'a str>,
}

/// The port of one dashboard.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Its number.
    pub port: u16,
    /// The word with which paths begin.
    pub word: String,
}

impl Rules {
    /// Where the page is.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/{}/debug/page/", self.port, self.word)
    }

    fn is_own(&self, host: &str) -> bool {
        let port = format!(":{}", self.port);
        ["127.0.0.1", "localhost"]
            .iter()
            .any(|name| host.strip_prefix(name) == Some(&*port))
    }

    /// The replica's path that is asked for.
    ///
    /// # Errors
    /// Status and words of the refusal.
    pub fn path<'a>(&self, asked: &Asked<'a>) -> Result<&'a str, (u16, &'static str)> {
        if !asked.host.is_some_and(|host| self.is_own(host)) {
            return Err((403, "this port is reached as 127.0.0.1 or localhost alone"));
        }
        let own_origin = |origin: &str| {
            let host = origin.strip_prefix("http://");
            host.is_some_and(|host| self.is_own(host))
        };
        let foreign_site = |site: &str| !["same-origin", "none"].contains(&site);
        if asked.origin.is_some_and(|origin| !own_origin(origin))
            || asked.site.is_some_and(foreign_site)
        {
            return Err((403, "pages of other sites may not ask"));
        }
        if asked.method != "GET" {
            return Err((405, "the page only reads"));
        }
        let within = asked.path.strip_prefix('/');
        let path = within.and_then(|path| path.strip_prefix(&*self.word));
        match path {
            Some(path) if PATHS.contains(&path) => Ok(path),
            _ => Err((
                404,
                "open the URL that kubectl manifold dashboard has printed",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_the_page_gets_through_and_nobody_but_its_own_origin() {
        let rules = Rules {
            port: 8100,
            word: "w0rd".to_owned(),
        };
        assert_eq!(rules.url(), "http://127.0.0.1:8100/w0rd/debug/page/");
        let own = Asked {
            method: "GET",
            path: "/w0rd/debug/page/",
            host: Some("127.0.0.1:8100"),
            ..Asked::default()
        };
        assert_eq!(rules.path(&own), Ok("/debug/page/"));
        let code = |asked: Asked<'_>| rules.path(&asked).map_or_else(|(code, _)| code, |_| 200);
        for path in PATHS {
            let path = format!("/w0rd{path}");
            assert_eq!(code(Asked { path: &path, ..own }), 200, "{path}");
        }
        for path in [
            "/",
            "/debug/page/",
            "/w0rd",
            "/w0rd/debug/move",
            "/w0rd/debug/flags/v",
            "/w0rd/metrics",
            "/w0rd/debug/page/../move",
            "/w0rd/debug/page/%2e%2e/move",
            "//w0rd/debug/page/",
            "/w0rdx/debug/page/",
        ] {
            assert_eq!(code(Asked { path, ..own }), 404, "{path}");
        }
        for (host, expected) in [
            (Some("localhost:8100"), 200),
            (None, 403),
            (Some("127.0.0.1"), 403),
            (Some("127.0.0.1:8101"), 403),
            (Some("evil.example:8100"), 403),
            (Some("127.0.0.1.evil.example:8100"), 403),
            (Some("localhost:8100.evil.example"), 403),
        ] {
            assert_eq!(code(Asked { host, ..own }), expected, "{host:?}");
        }
        for (origin, expected) in [
            (Some("http://127.0.0.1:8100"), 200),
            (Some("http://localhost:8100"), 200),
            (Some("https://127.0.0.1:8100"), 403),
            (Some("http://evil.example"), 403),
            (Some("null"), 403),
        ] {
            assert_eq!(code(Asked { origin, ..own }), expected, "{origin:?}");
        }
        for (site, expected) in [
            ("same-origin", 200),
            ("none", 200),
            ("same-site", 403),
            ("cross-site", 403),
        ] {
            let site = Some(site);
            assert_eq!(code(Asked { site, ..own }), expected, "{site:?}");
        }
        for method in ["POST", "PUT", "HEAD", "DELETE", "OPTIONS"] {
            assert_eq!(code(Asked { method, ..own }), 405, "{method}");
        }
    }
}
