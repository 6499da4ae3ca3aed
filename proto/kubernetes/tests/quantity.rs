use crate::meta::Quantity;

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
