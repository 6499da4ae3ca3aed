use super::*;

/// A zone's file of one offset, in hours.
fn file(hours: i32) -> Vec<u8> {
    let block = |counts: bool| {
        let mut bytes = b"TZif2".to_vec();
        bytes.extend([0; 15]);
        // UT, standard, leap, transitions, types, characters.
        for count in [0_u32, 0, 0, 0, 1, 4] {
            bytes.extend(count.to_be_bytes());
        }
        bytes.extend((hours * 3600).to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(b"ABC\0");
        if counts {
            bytes.extend(format!("\nABC{}\n", -hours).as_bytes());
        }
        bytes
    };
    [block(false), block(true)].concat()
}

/// The zone on a host that has some files: its source, and its offset in hours on a day of winter.
fn found(tz: Option<&str>, files: &[(&str, Vec<u8>)]) -> Option<(String, i32)> {
    let read = |path: &str| {
        let mut held = files.iter();
        held.find(|(name, _)| *name == path)
            .map(|(_, content)| content.clone())
    };
    let winter: Timestamp = "2026-01-15T12:00:00Z".parse().unwrap();
    find(tz, &read).map(|host| (host.source, host.zone.to_offset(winter).seconds() / 3600))
}

#[test]
fn the_host_s_zone_is_found_as_go_finds_it() {
    let files = [
        ("/etc/localtime", file(2)),
        ("/usr/share/zoneinfo/Own/Zone", file(3)),
        ("/etc/zoneinfo/Own/Zone", file(4)),
        ("/etc/zoneinfo/Other/Zone", file(5)),
        ("/srv/zone", file(6)),
        ("/srv/utc", file(0)),
        ("/srv/broken", b"TZif?".to_vec()),
        ("/usr/share/zoneinfo/Asia/Tokyo", b"".to_vec()),
    ];
    let table = [
        ("not set", None, Some(("/etc/localtime", 2))),
        ("empty", Some(""), None),
        ("UTC", Some("UTC"), None),
        ("a colon alone", Some(":"), None),
        ("a colon and UTC", Some(":UTC"), None),
        (
            "an absolute path",
            Some("/srv/zone"),
            Some(("/srv/zone", 6)),
        ),
        (
            "a colon and a path",
            Some(":/srv/zone"),
            Some(("/srv/zone", 6)),
        ),
        (
            "the local time by its path",
            Some("/etc/localtime"),
            Some(("/etc/localtime", 2)),
        ),
        ("a file of UTC", Some("/srv/utc"), None),
        ("a file that is no zone", Some("/srv/broken"), None),
        ("a path without a file", Some("/srv/none"), None),
        (
            "a name in the first folder",
            Some("Own/Zone"),
            Some(("Own/Zone", 3)),
        ),
        (
            "a name in the last folder",
            Some("Other/Zone"),
            Some(("Other/Zone", 5)),
        ),
        (
            "a colon and a name",
            Some(":Own/Zone"),
            Some(("Own/Zone", 3)),
        ),
        (
            "a name of the build",
            Some("Europe/Berlin"),
            Some(("Europe/Berlin", 1)),
        ),
        (
            "a broken file with a name of the build",
            Some("Asia/Tokyo"),
            Some(("Asia/Tokyo", 9)),
        ),
        ("a name in other letters", Some("europe/berlin"), None),
        ("an unknown name", Some("Nowhere/City"), None),
        (
            "a rule, which Go does not read",
            Some("CET-1CEST,M3.5.0,M10.5.0/3"),
            None,
        ),
    ];
    for (what, tz, wanted) in table {
        let wanted = wanted.map(|(source, hours)| (source.to_owned(), hours));
        assert_eq!(found(tz, &files), wanted, "{what}");
    }
    assert_eq!(found(None, &[]), None, "neither $TZ nor a file");
}
