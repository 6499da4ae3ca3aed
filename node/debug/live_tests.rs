use super::*;
use coordinator_core::RangeOwner;

fn member(name: &str, draining: bool, ready: bool) -> Member {
    Member {
        name: name.to_owned(),
        incarnation: "1".to_owned(),
        ready,
        draining,
        ..Member::default()
    }
}

#[test]
fn replicas_are_named_with_those_that_are_gone() {
    let owner = |range, owner: &str| RangeOwner {
        range,
        owner: Some(owner.to_owned()),
        epoch: 1,
    };
    let view = View {
        members: vec![
            member("a", false, true),
            member("b", true, true),
            member("c", false, false),
        ],
        ranges: vec![owner(0, "a"), owner(1, "a"), owner(2, "z")].into(),
        ..View::default()
    };
    let said = BTreeMap::from([
        (
            "a".to_owned(),
            Ok(Recorded {
                keys: 7,
                open: true,
                ..Recorded::default()
            }),
        ),
        (
            "b".to_owned(),
            Err(Missing {
                replica: "b".to_owned(),
                why: "no answer within 3s".to_owned(),
            }),
        ),
    ]);
    let all = replicas(&view, &said, [("a", 5), ("z", 6)].into_iter());
    let words: Vec<String> = all
        .iter()
        .map(|one| {
            let keys = one.figures.as_ref().map(|figures| figures.keys);
            format!(
                "{} {} {} {keys:?} {}",
                one.name, one.state, one.ranges, one.why
            )
        })
        .collect();
    assert_eq!(
        words,
        [
            "a active 2 Some(7) ",
            "b draining 0 None no answer within 3s",
            "c starting 0 None it was not asked yet",
            "z gone 1 None without a Lease since 1970-01-01T00:01:00Z",
        ]
    );
}

#[test]
fn columns_are_sent_once_and_planes_that_change_alone() {
    let mut picture = Picture::new(2);
    for (at, both) in [(7, ["a", "b"]), (8, ["a", "b"]), (9, ["a", "a"])] {
        let owners = (0..).zip(both.map(Some));
        picture.owned_by(at, both.into_iter(), owners);
    }
    let sent = columns(&picture, 7);
    assert_eq!(sent.names, ["a", "b"]);
    assert_eq!((sent.ranges, sent.seconds, sent.kept), (2, 10, 360));
    let planes = |of: &Columns| -> Vec<String> {
        let shown = |plane: &Option<String>| {
            let bytes = plane.as_ref().map(|plane| BASE64.decode(plane).unwrap());
            bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{bytes:?}"))
        };
        let columns = of.columns.iter();
        columns
            .map(|one| format!("{} {} {}", one.at, shown(&one.owner), shown(&one.work)))
            .collect()
    };
    assert_eq!(planes(&sent), ["7 [1, 2] [0, 0]", "8 - -", "9 [1, 1] -"]);
    assert_eq!(
        planes(&columns(&picture, 8)),
        ["8 [1, 2] [0, 0]", "9 [1, 1] -"]
    );
    let json = serde_json::to_string(&columns(&picture, 9)).unwrap();
    assert!(!json.contains('\n') && json.len() < 300, "{json}");
}

#[test]
fn a_row_that_is_no_base64_is_left_out() {
    let row = |work: &str| Row {
        range: 3,
        first: 9,
        work: work.to_owned(),
        wait: BASE64.encode([1, 2]),
    };
    let cells = decoded(&row(&BASE64.encode([3, 4]))).unwrap();
    assert_eq!((cells.range, cells.first), (3, 9));
    assert_eq!((cells.work, cells.wait), (vec![3, 4], vec![1, 2]));
    assert_eq!(decoded(&row("?")), None);
}

#[tokio::test]
async fn a_slow_reader_gets_the_newest_state_and_all_columns_and_holds_nothing() {
    let live = Live::new(1);
    let mut feed = Feed::new(Arc::clone(&live), live.ticks.subscribe());
    let publish = |at: u64, keys_number| {
        let owner = |name| [(0, Some(name))].into_iter();
        let mut inner = live.inner();
        inner.picture.owned_by(at, ["a"].into_iter(), owner("a"));
        live.ticks.send_replace(Some(Arc::new(Tick {
            state: format!("{at}"),
            keys_number,
            top: Top::default(),
            unhappy: Unhappy::default(),
        })));
    };
    let read = async |feed: &mut Feed| {
        let tick = feed.tick().await.unwrap();
        let columns = feed
            .columns()
            .columns
            .iter()
            .map(|one| one.at)
            .collect::<Vec<_>>();
        (tick.state.clone(), columns, feed.wants_keys(&tick))
    };
    publish(10, 1);
    assert_eq!(read(&mut feed).await, ("10".to_owned(), vec![10], true));
    for at in 11..=14 {
        publish(at, 2);
    }
    // The column before the newest one may have been amended since.
    let expected = ("14".to_owned(), (10..=14).collect(), true);
    assert_eq!(read(&mut feed).await, expected);
    publish(14, 2);
    assert_eq!(
        read(&mut feed).await,
        ("14".to_owned(), vec![13, 14], false)
    );
    // Who stays away for longer than the picture reaches back reads the picture.
    for at in 15..2000 {
        publish(at, 2);
    }
    let (state, columns, _) = read(&mut feed).await;
    assert_eq!((&*state, columns.len()), ("1999", 360));
    live.ticks.send_replace(None);
    let waits = tokio::time::timeout(Duration::from_millis(20), feed.tick());
    assert!(waits.await.is_err(), "nobody asks any more");
}
