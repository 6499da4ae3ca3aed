use crate::{meta::Quantity, quantity::Exact};

#[test]
fn amounts_are_read_in_thousandths_rounded_up() {
    for (text, milli) in [
        ("0", 0),
        ("1", 1000),
        ("100m", 100),
        ("1.5", 1500),
        ("0.0001", 1),
        ("1n", 1),
        ("250u", 1),
        ("2k", 2_000_000),
        ("1Ki", 1_024_000),
        ("64Mi", 67_108_864_000),
        ("1e3", 1_000_000),
        ("1E3", 1_000_000),
        ("1E", i64::MAX),
        ("-5", -5000),
        ("+0.5", 500),
        (".5", 500),
        ("5.", 5000),
        ("0E", 0),
    ] {
        assert_eq!(Quantity::text(text).milli(), Some(milli), "{text}");
    }
    for text in ["", "m", "1x", "1.2.3", "--1", "1e", "1ee3"] {
        assert_eq!(Quantity::text(text).milli(), None, "{text}");
    }
}

#[test]
fn amounts_are_read_as_numbers() {
    for (text, number) in [("0.1", 0.1), ("50m", 0.05), ("2Ki", 2048.0), ("-1", -1.0)] {
        let read = Quantity::text(text).approximate().unwrap();
        assert!((read - number).abs() < 1e-12, "{text}: {read}");
    }
}

#[test]
fn amounts_are_written_as_the_api_writes_them() {
    for (milli, text) in [
        (0, "0"),
        (1, "1m"),
        (1500, "1500m"),
        (2000, "2"),
        (1_000_000, "1k"),
        (1_500_000, "1500"),
        (-2000, "-2"),
        (10_000_000_000, "10M"),
    ] {
        assert_eq!(Quantity::of_milli(milli).string, text);
    }
    for (milli, text) in [
        (0, "0"),
        (512_000, "512"),
        (1_024_000, "1Ki"),
        (67_108_864_000, "64Mi"),
        (1_025_000, "1025"),
        (1_024_500, "1024500m"),
        (-2_048_000, "-2Ki"),
    ] {
        assert_eq!(Quantity::of_milli_binary(milli).string, text);
    }
}

fn exact(text: &str) -> Exact {
    Quantity::text(text)
        .exact()
        .unwrap_or_else(|| panic!("{text} is no amount"))
}

#[test]
fn an_amount_that_was_read_is_written_as_the_api_does() {
    for (text, written) in [
        ("0", "0"),
        ("0Mi", "0"),
        ("1", "1"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("0.5", "500m"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        ("1000", "1k"),
        ("1500", "1500"),
        ("100000", "100k"),
        ("2E", "2E"),
        ("64Mi", "64Mi"),
        ("1024Ki", "1Mi"),
        ("1536Mi", "1536Mi"),
        ("0.5Ki", "512"),
        ("0.5Mi", "512Ki"),
        ("1.0001Ki", "1024102400u"),
        ("1Ei", "1Ei"),
        ("100Ei", "9223372036854775807"),
        ("1e3", "1e3"),
        ("12E6", "12e6"),
        ("1500e-3", "1500e-3"),
        ("1e0", "1"),
        ("-64Mi", "-64Mi"),
        ("-1500m", "-1500m"),
    ] {
        assert_eq!(exact(text).quantity().string, written, "{text}");
    }
    for text in ["", "x", "1Q", "1.2.3"] {
        assert_eq!(Quantity::text(text).exact(), None, "{text}");
    }
}

#[test]
fn a_sum_is_written_as_its_first_part_that_is_not_nothing() {
    for (parts, sum) in [
        (&["0", "64Mi", "64Mi"][..], "128Mi"),
        (&["64Mi", "1M"], "68108864"),
        (&["1M", "64Mi"], "68108864"),
        (&["1G", "1Gi"], "2073741824"),
        (&["1Gi", "24M"], "1097741824"),
        (&["1Gi", "1Gi"], "2Gi"),
        (&["512Mi", "512Mi"], "1Gi"),
        (&["100m", "900m"], "1"),
        (&["1Ki", "1m"], "1024001m"),
        (&["0", "0Mi", "1k"], "1k"),
    ] {
        let added = parts
            .iter()
            .fold(Exact::default(), |sum, part| sum.plus(exact(part)));
        assert_eq!(added.quantity().string, sum, "{parts:?}");
    }
    assert_eq!(exact("3Gi").less(exact("1Gi")).quantity().string, "2Gi");
    assert_eq!(exact("1").at_least(exact("1000m")).quantity().string, "1");
    assert_eq!(exact("1Gi").at_least(exact("2G")).quantity().string, "2G");
    assert_eq!(exact("1500m").whole().quantity().string, "2");
    assert_eq!(exact("-1500m").whole().quantity().string, "-2");
    assert!(exact("1").equals(exact("1000m")));
    assert!(exact("1Gi").exceeds(exact("1G")));
    assert_eq!(Exact::of_count(1000).quantity().string, "1k");
}
