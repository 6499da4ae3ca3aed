use http_body_util::BodyExt as _;

use super::*;

#[tokio::test]
async fn of_an_answer_the_page_s_own_headers_are_passed_alone() {
    let answer = http::Response::builder()
        .status(429)
        .header("content-type", "text/event-stream")
        .header("content-security-policy", "default-src 'self'")
        .header("x-content-type-options", "nosniff")
        .header("retry-after", "10")
        .header("set-cookie", "a=b")
        .header("access-control-allow-origin", "*")
        .header("connection", "keep-alive")
        .body(kube::client::Body::from(b"data: {}\n\n".to_vec()))
        .unwrap();
    let response = passed(answer);
    assert_eq!(response.status().as_u16(), 429);
    let mut names: Vec<&str> = response
        .headers()
        .keys()
        .map(|name| name.as_str())
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "content-security-policy",
            "content-type",
            "retry-after",
            "x-content-type-options"
        ]
    );
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "data: {}\n\n");
}
