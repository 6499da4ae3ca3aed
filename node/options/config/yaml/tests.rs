use std::{fmt::Write as _, time::Instant};

use serde_json::json;

use super::*;

fn name(text: &str) -> Step {
    Step::Name(text.to_owned())
}

#[test]
fn plain_documents_are_read_as_yaml_and_json() {
    for (text, wanted) in [
        (
            "a: 1\nb: [x, '2', 2.5, true, null, ~]\n",
            json!({"a": 1, "b": ["x", "2", 2.5, true, null, null]}),
        ),
        (r#"{"a": {"b": "c"}}"#, json!({"a": {"b": "c"}})),
        (
            "a: &x {b: c}\nd: *x\n",
            json!({"a": {"b": "c"}, "d": {"b": "c"}}),
        ),
        (
            "a: -9223372036854775808\nb: 18446744073709551615\n",
            json!({"a": i64::MIN, "b": u64::MAX}),
        ),
        ("a: |\n  text\n", json!({"a": "text\n"})),
        ("# only a comment\n---\na: 0x10\n", json!({"a": 16})),
        ("\u{feff}a: 1\n", json!({"a": 1})),
        ("a: 5m0s\n", json!({"a": "5m0s"})),
    ] {
        assert_eq!(read(text.as_bytes()).unwrap(), wanted, "{text}");
    }
}

#[test]
fn what_cannot_be_used_is_named_with_its_line() {
    let deep = format!("a: {}{}\n", "[".repeat(40), "]".repeat(40));
    for (text, line, part) in [
        (&b""[..], None, "is empty"),
        (b"# nothing\n", None, "is empty"),
        (b"~\n", None, "is empty"),
        (b"a: 1\na: 2\n", Some(2), "the field \"a\" is there twice"),
        (
            b"a:\n  b: 1\n  b: 1\n",
            Some(3),
            "the field \"b\" is there twice",
        ),
        (b"a: 1\n---\nb: 2\n", None, "more than one document"),
        (b"a: [1, 2\nb: 3\n", Some(2), "did not find expected"),
        (b"a: 'x\n", Some(2), "unexpected end of stream"),
        (b"a:\tb\n\tc: d\n", Some(2), "found a tab character"),
        (b"a: *nobody\n", Some(1), "unknown anchor"),
        (b"a: !secret x\n", Some(1), "without a tag"),
        (
            b"a: !!binary aGk=\n? {b: c}\n: d\n",
            Some(2),
            "the name of a field",
        ),
        (b"? [a]\n: b\n", Some(1), "the name of a field"),
        (b"a: .nan\n", Some(1), "infinity and NaN"),
        (b"a: -.inf\n", Some(1), "infinity and NaN"),
        (
            b"a: 340282366920938463463374607431768211456\nb: 18446744073709551616\n",
            Some(2),
            "invalid type",
        ),
        (b"a: 1\nb: \xff\n", Some(2), "is not UTF-8"),
        (b"\xff\xfea\x00:\x00", Some(1), "is not UTF-8"),
        (b"a: 1\n\nb: \0\n", Some(3), "holds a NUL byte"),
        (b"a: \x07\n", Some(1), "control characters are not allowed"),
        (deep.as_bytes(), Some(1), "in each other"),
    ] {
        let shown = String::from_utf8_lossy(text);
        let found = read(text)
            .err()
            .unwrap_or_else(|| panic!("{shown} was read"));
        assert!(found.why.contains(part), "{shown}: {found:?}");
        assert_eq!(found.line, line, "{shown}: {}", found.why);
        assert!(
            !found.why.contains(" at line 1 column 1 at"),
            "{}",
            found.why
        );
    }
}

/// Texts that are small and hold much, or are slow to read.
fn bombs() -> Vec<(&'static str, String)> {
    let mut laughs = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for level in 1..10 {
        let before = level - 1;
        let row = vec![format!("*a{before}"); 9].join(", ");
        writeln!(laughs, "a{level}: &a{level} [{row}]").unwrap();
    }
    let mut long = format!("a: &a {}\nb:\n", "x".repeat(60 << 10));
    for _ in 0..2_000 {
        long.push_str("- *a\n");
    }
    let mut merged = "a0: &a0 {k: v}\n".to_owned();
    for level in 1..40 {
        let before = level - 1;
        writeln!(
            merged,
            "a{level}: &a{level} {{x: *a{before}, y: *a{before}}}"
        )
        .unwrap();
    }
    let fill = |unit: &str| unit.repeat(BYTES_MAX / unit.len() - 2);
    let indented: String = (0..400)
        .map(|depth| format!("{}a:\n", " ".repeat(depth)))
        .collect();
    vec![
        ("aliases of aliases", laughs),
        ("aliases of aliases in mappings", merged),
        ("aliases of a long text", long),
        ("an alias within itself", "a: &a [*a]\n".to_owned()),
        ("lists in each other", fill("[")),
        ("mappings in each other", fill("{a: ")),
        ("sequences in each other", fill("- ")),
        ("complex names in each other", fill("? ")),
        ("anchors", fill("&a ")),
        ("tags", fill("!a ")),
        ("quotes", fill("'")),
        ("directives", fill("%a\n")),
        ("documents", fill("---\n")),
        ("an indented mapping", indented),
        (
            "many fields",
            (0..12_000).map(|n| format!("f{n}: 1\n")).collect(),
        ),
        ("empty items", fill("-\n")),
        ("commas", format!("[{}", fill(","))),
        ("colons", fill(": ")),
        ("digits", format!("a: {}", &fill("9")[4..])),
        ("a comment", fill("#")),
        ("one long name", format!("{}: 1\n", &fill("n")[8..])),
    ]
}

#[test]
fn no_text_costs_more_than_its_bounds() {
    for (what, text) in bombs() {
        assert!(text.len() <= BYTES_MAX, "{what}: {} bytes", text.len());
        let began = Instant::now();
        let found = read(text.as_bytes());
        let took = began.elapsed();
        println!(
            "{what}: {took:?}: {:?}",
            found.as_ref().err().map(|error| &error.why)
        );
        if let Err(why) = &found {
            assert!(why.why.chars().count() <= WHY_MAX, "{what}: {}", why.why);
        }
        if let Ok(document) = &found {
            assert!(document.to_string().len() <= 3 * BYTES_MAX, "{what}");
        }
        assert!(took.as_secs() < 2, "{what} took {took:?}");
        // Nor does the search for a line.
        line(&text, &[name("a"), Step::Item(3), name("b")]);
    }
    let large = vec![b'#'; BYTES_MAX + 1];
    assert!(read(&large).unwrap_err().why.contains("is longer than"));
}

#[test]
fn no_cut_or_mixed_document_panics() {
    let text = "apiVersion: v1\nGeneric: &g\n  'Controllers': [\"*\", -ttl]\n  qps: 1.5e3\nfleet: {<<: *g, a: ~}\nx: |-\n  y\n? z\n: !t q\n";
    let parts = [
        "\n", ": ", "- ", "[", "}", "&a ", "*a", "!t", "'", "\"", "|", "?", "#", "%", "\t",
        "\u{85}", "\u{2028}", "---\n", "...",
    ];
    let mut read_at_all = 0;
    for at in 0..=text.len() {
        read_at_all += usize::from(read(&text.as_bytes()[..at]).is_ok());
        for part in parts {
            let mixed = format!("{}{part}{}", &text[..at], &text[at..]);
            read_at_all += usize::from(read(mixed.as_bytes()).is_ok());
            line(
                &mixed,
                &[name("Generic"), name("Controllers"), Step::Item(1)],
            );
        }
    }
    assert!(read_at_all > 30, "{read_at_all}");
}

#[test]
fn a_value_has_the_line_of_its_name() {
    let text =
        "# head\na: 1\nb:\n  c:\n  - x\n  - d: 1\n    e: 2\n  f: {g: 1,\n    h: 2}\n\"i\": 3\n";
    for (path, wanted) in [
        (vec![], 2),
        (vec![name("a")], 2),
        (vec![name("b")], 3),
        (vec![name("b"), name("c")], 4),
        (vec![name("b"), name("c"), Step::Item(0)], 5),
        (vec![name("b"), name("c"), Step::Item(1)], 6),
        (vec![name("b"), name("c"), Step::Item(1), name("e")], 7),
        (vec![name("b"), name("f"), name("g")], 8),
        (vec![name("b"), name("f"), name("h")], 9),
        (vec![name("i")], 10),
        // What is not there is where it would be.
        (vec![name("b"), name("z")], 3),
        (vec![name("a"), name("z")], 2),
        (vec![name("z")], 2),
        (vec![name("b"), name("c"), Step::Item(9)], 4),
    ] {
        assert_eq!(line(text, &path), Some(wanted), "{path:?}");
    }
    assert_eq!(line("[", &[name("a")]), Some(1), "as far as it can be read");
}
