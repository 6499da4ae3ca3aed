//! Answers as text for people: pure. JSON and YAML are the answers themselves.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use inspect::{
    Attempt, Blocker, Explanation, FleetShards, KeyReport, ObjectReport, Reference, Top, Unhappy,
    UnhappyKey,
};

use crate::verdict;

/// Rows of a table of ranges or keys, unless all are wanted.
const ROWS_MAX: usize = 20;
/// Attempts that `explain` shows of a key; `history` shows all.
const ATTEMPTS_SHOWN: usize = 3;

/// A table as kubectl prints it: no lines, columns three spaces apart. `right` are the columns of numbers.
fn table<const N: usize>(
    header: [&str; N],
    right: &[usize],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    let last = N - 1;
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if at == last { 0 } else { 3 }));
        if right.contains(&at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt() + "\n"
}

fn missing(text: &mut String, missing: &[inspect::Missing]) {
    for one in missing {
        // Writing into a String can't fail, here and below.
        let _ = writeln!(text, "‼ {} does not answer: {}", one.replica, one.why);
    }
}

/// `status`.
pub fn status(shards: &FleetShards, unhappy: &Unhappy, wide: bool) -> String {
    let ready = shards
        .members
        .iter()
        .filter(|member| member.ready && !member.draining);
    let owned = shards
        .ranges
        .iter()
        .filter(|range| range.owner.is_some())
        .count();
    let sum = |of: fn(&inspect::Totals) -> usize| -> usize {
        shards
            .replicas
            .iter()
            .map(|replica| of(&replica.totals))
            .sum()
    };
    let mut text = String::new();
    let _ = writeln!(
        text,
        "Replicas: {} ready of {}\nRanges:   {owned} owned of {}\nKeys:     {}, {} waiting, {} failing\n",
        ready.count(),
        shards.members.len(),
        shards.ranges_total,
        sum(|totals| totals.keys),
        sum(|totals| totals.queued),
        verdict::failing(unhappy),
    );
    if shards.shadow {
        text +=
            "A shadow: it plans and compares, and writes nothing; see kubectl manifold shadow\n\n";
    }
    text += &replicas(shards, wide);
    text += &pauses(shards);
    text += &settings(shards);
    text += &moves(shards);
    text += &placement(shards);
    let failing: Vec<_> = unhappy.keys.iter().filter(|key| key.failures > 0).collect();
    if !failing.is_empty() {
        text.push('\n');
        text += &table(
            ["FAILING KEY", "CONTROLLER", "FAILURES", "BLOCKED BY"],
            &[2],
            failing.iter().take(ROWS_MAX).map(|key| {
                [
                    key.key.clone(),
                    key.controller.clone(),
                    key.failures.to_string(),
                    blocked_by(key),
                ]
            }),
        );
        rest(&mut text, failing.len());
    }
    let problems = verdict::problems(shards);
    text.push('\n');
    for problem in &problems {
        let _ = writeln!(text, "× {problem}");
    }
    if problems.is_empty() {
        text += "√ the fleet is well\n";
    }
    text
}

/// What is paused, until when, and how many keys wait for the end.
fn pauses(shards: &FleetShards) -> String {
    let steering = &shards.steering;
    if steering.pauses.is_empty() {
        return String::new();
    }
    let waiting = |controller: &str| -> usize {
        let all = shards.replicas.iter().flat_map(|one| &one.controllers);
        let its = all.filter(|one| one.name == controller);
        its.map(|one| one.paused).sum()
    };
    let rows = steering.pauses.iter().map(|pause| {
        let (target, waiting) = match pause.key.is_empty() {
            true => (
                pause.controller.clone(),
                waiting(&pause.controller).to_string(),
            ),
            // Whether that one waits its owner alone knows: `explain` asks it.
            false => (format!("{}/{}", pause.controller, pause.key), String::new()),
        };
        [
            target,
            waiting,
            pause.until.clone(),
            pause.by.clone(),
            pause.reason.clone(),
        ]
    });
    let header = ["PAUSED", "KEYS WAITING", "UNTIL", "BY", "REASON"];
    format!("\n{}", table(header, &[1], rows))
}

/// What is set of controllers, and until when.
fn settings(shards: &FleetShards) -> String {
    let settings = &shards.steering.settings;
    if settings.is_empty() {
        return String::new();
    }
    let rows = settings.iter().map(|one| {
        [
            one.controller.clone(),
            one.setting.clone(),
            one.value.to_string(),
            one.until.clone(),
            one.by.clone(),
            one.reason.clone(),
        ]
    });
    let header = ["SET", "WHAT", "VALUE", "UNTIL", "BY", "REASON"];
    format!("\n{}", table(header, &[2], rows))
}

/// What operators have moved, where it is at home, and until when.
fn moves(shards: &FleetShards) -> String {
    let moves = &shards.steering.moves;
    if moves.is_empty() {
        return String::new();
    }
    let rows = moves.iter().map(|one| {
        let to = match one.without_effect {
            true => format!("{} (no effect)", one.to),
            false => one.to.clone(),
        };
        [
            format!("range {}", one.range),
            to,
            one.home.clone(),
            one.until.clone(),
            one.by.clone(),
            one.reason.clone(),
        ]
    });
    let header = ["MOVED", "TO", "HOME", "UNTIL", "BY", "REASON"];
    format!("\n{}", table(header, &[], rows))
}

/// By which plan ranges are placed, where one is followed.
fn placement(shards: &FleetShards) -> String {
    let placement = &shards.placement;
    match placement.in_force {
        true => format!(
            "\nPlacement: by load, plan {} of {}\n",
            placement.plan, placement.planner
        ),
        false => String::new(),
    }
}

fn rest(text: &mut String, count: usize) {
    if count > ROWS_MAX {
        let _ = writeln!(text, "… and {} more: -o wide shows all", count - ROWS_MAX);
    }
}

/// What blocks a key that fails: a pause, else what its last attempt says.
fn blocked_by(key: &UnhappyKey) -> String {
    let last = key.attempts.last();
    let blocker = last.and_then(|attempt| attempt.blocker.as_ref());
    match (key.pause.as_ref().or(blocker), last) {
        (Some(blocker), _) if blocker.name.is_empty() => blocker.kind.word().to_owned(),
        (Some(blocker), _) => format!("{} {}", blocker.kind.word(), blocker.name),
        (None, Some(attempt)) => attempt.error.chars().take(60).collect(),
        (None, None) => String::new(),
    }
}

/// Seconds of work in a second, as a share of one processor.
fn load(load: f64) -> String {
    format!("{:.1}%", load * 100.0)
}

fn replicas(shards: &FleetShards, wide: bool) -> String {
    let rows = shards.members.iter().map(|member| {
        let said = shards
            .replicas
            .iter()
            .find(|one| one.replica == member.name);
        let number = |of: fn(&inspect::ReplicaShards) -> u64| {
            said.map_or_else(|| "?".to_owned(), |said| of(said).to_string())
        };
        let mut drains = shards.steering.drains.iter();
        let is_drained = drains
            .any(|drain| drain.replica == member.name && drain.incarnation == member.incarnation);
        let state = match (member.draining, member.ready) {
            (true, _) => "draining",
            (false, true) if is_drained => "drained",
            (false, true) => "ready",
            (false, false) => "starting",
        };
        let fence = match said.map(|said| said.fence.open) {
            Some(true) => "open",
            Some(false) => "closed",
            None => "?",
        };
        let asked = match member.name == shards.replica {
            true => format!("{}*", member.name),
            false => member.name.clone(),
        };
        [
            asked,
            state.to_owned(),
            fence.to_owned(),
            number(|said| said.owned.len() as u64),
            load(member.load),
            number(|said| said.totals.keys as u64),
            number(|said| said.totals.queued as u64),
            number(|said| said.totals.reconciles),
            number(|said| said.totals.writes),
            member.version.clone(),
            member.address.clone(),
            member.incarnation.clone(),
        ]
    });
    let header = [
        "REPLICA",
        "STATE",
        "FENCE",
        "RANGES",
        "LOAD",
        "KEYS",
        "WAITING",
        "RECONCILES",
        "WRITES",
        "VERSION",
        "PEER ADDRESS",
        "INCARNATION",
    ];
    let numbers = [3, 4, 5, 6, 7, 8];
    match wide {
        true => table(header, &numbers, rows),
        false => {
            let short = |row: [String; 12]| -> [String; 10] {
                let mut row = row.into_iter();
                std::array::from_fn(|_| row.next().unwrap_or_default())
            };
            let header: [&str; 10] = std::array::from_fn(|at| header[at]);
            table(header, &numbers, rows.map(short))
        }
    }
}

/// `shards`: a row for each replica, or with `wide` for each range.
pub fn shards(shards: &FleetShards, wide: bool) -> String {
    let mut text = String::new();
    if !wide {
        text += &replicas(shards, false);
        let unowned: Vec<String> = shards
            .ranges
            .iter()
            .filter(|range| range.owner.is_none())
            .map(|range| range.range.to_string())
            .collect();
        if !unowned.is_empty() {
            let _ = writeln!(text, "× without owner: {}", unowned.join(", "));
        }
        missing(&mut text, &shards.missing);
        return text;
    }
    // Of a range that an operator has moved.
    let home = |range: u16| {
        let moved = shards.steering.moves.iter().find(|one| one.range == range);
        moved.map_or_else(String::new, |one| one.home.clone())
    };
    let rows = shards.ranges.iter().map(|range| {
        let owner = range.owner.clone().unwrap_or_default();
        let said = shards
            .replicas
            .iter()
            .find(|replica| replica.replica == owner)
            .and_then(|replica| replica.owned.iter().find(|one| one.range == range.range));
        let text = |of: fn(&inspect::OwnedRange) -> String| said.map_or_else(|| "?".to_owned(), of);
        [
            range.range.to_string(),
            owner,
            home(range.range),
            range.epoch.to_string(),
            load(range.load),
            text(|said| said.state.clone()),
            text(|said| said.keys.to_string()),
            text(|said| said.queued.to_string()),
        ]
    });
    text += &table(
        [
            "RANGE", "OWNER", "HOME", "EPOCH", "LOAD", "STATE", "KEYS", "WAITING",
        ],
        &[0, 3, 4, 6, 7],
        rows,
    );
    missing(&mut text, &shards.missing);
    text
}

/// `top`.
pub fn top(top: &Top, wide: bool) -> String {
    let rows = match wide {
        true => usize::MAX,
        false => ROWS_MAX / 2,
    };
    let share = load;
    let rate = |rate: f64| format!("{rate:.2}");
    let mut text = table(
        ["CONTROLLER", "RATE/S", "LOAD", "KEYS", "WAITING", "FAILING"],
        &[1, 2, 3, 4, 5],
        top.controllers
            .iter()
            .filter(|one| wide || one.keys > 0)
            .take(rows)
            .map(|one| {
                [
                    one.controller.clone(),
                    rate(one.rate),
                    share(one.load),
                    one.keys.to_string(),
                    one.queued.to_string(),
                    one.failing.to_string(),
                ]
            }),
    );
    text.push('\n');
    text += &table(
        ["RANGE", "OWNER", "RATE/S", "LOAD", "KEYS", "WAITING"],
        &[0, 2, 3, 4, 5],
        top.ranges.iter().take(rows).map(|one| {
            [
                one.range.to_string(),
                one.owner.clone(),
                rate(one.rate),
                share(one.load),
                one.keys.to_string(),
                one.queued.to_string(),
            ]
        }),
    );
    text.push('\n');
    text += &table(
        [
            "KEY",
            "CONTROLLER",
            "RANGE",
            "OWNER",
            "RATE/S",
            "LOAD",
            "FAILURES",
        ],
        &[2, 4, 5, 6],
        top.keys.iter().take(rows).map(|one| {
            [
                one.key.clone(),
                one.controller.clone(),
                one.range.to_string(),
                one.owner.clone(),
                rate(one.rate),
                share(one.load),
                one.failures.to_string(),
            ]
        }),
    );
    if top.hidden > 0 {
        let _ = writeln!(
            text,
            "- {} keys are hidden: you may not list their objects",
            top.hidden
        );
    }
    missing(&mut text, &top.missing);
    text
}

/// A duration as kubectl has it.
fn age(ms: u64) -> String {
    match ms {
        0..=999 => format!("{ms}ms"),
        1_000..=9_999 => format!("{:.1}s", ms as f64 / 1000.0),
        10_000..=119_999 => format!("{}s", ms / 1000),
        120_000..=7_199_999 => format!("{}m", ms / 60_000),
        _ => format!("{}h", ms / 3_600_000),
    }
}

/// The time of day of an instant as RFC 3339 has it.
fn time_of_day(at: &str) -> &str {
    let time = at.split_once('T').map_or(at, |(_, time)| time);
    time.split(['.', 'Z']).next().unwrap_or(time)
}

fn references(all: &[Reference]) -> String {
    let all = all
        .iter()
        .map(|one| format!("{} {}", one.resource, one.name));
    all.collect::<Vec<_>>().join(", ")
}

fn blocked(text: &mut String, indent: &str, label: &str, blocker: &Blocker) {
    let _ = write!(text, "{indent}{label}{}", blocker.kind.word());
    for part in [&blocker.name, &blocker.detail] {
        if !part.is_empty() {
            let _ = write!(text, ": {part}");
        }
    }
    let _ = writeln!(text, "\n{indent}remedy:   {}", blocker.remedy);
}

fn object(text: &mut String, object: &ObjectReport) {
    let seen = match object.exists {
        true => "",
        false => {
            " (not in the cache: it does not exist, or no controller that runs here watches it)"
        }
    };
    let _ = writeln!(
        text,
        "Object:     {} {}{seen}",
        object.resource, object.name
    );
    if !object.owners.is_empty() {
        let _ = writeln!(text, "Owned by:   {}", references(&object.owners));
    }
    if object.dependents_total > 0 {
        let more = object
            .dependents_total
            .saturating_sub(object.dependents.len());
        let names = match (object.dependents.is_empty(), more) {
            (true, count) => format!("{count} objects"),
            (false, 0) => references(&object.dependents),
            (false, more) => format!("{} and {more} more", references(&object.dependents)),
        };
        let _ = writeln!(text, "Controls:   {names}");
    }
    for hold in &object.holds {
        blocked(text, "", "Held up by: ", hold);
    }
}

fn is_troubled(key: &KeyReport) -> bool {
    key.failures > 0 || key.blocker.is_some()
}

fn attempt_line(attempt: &Attempt) -> String {
    let mut line = format!("{} {}", time_of_day(&attempt.at), attempt.result);
    if let Some(code) = attempt.code {
        let _ = write!(line, " {code}");
    }
    if let Some(blocker) = &attempt.blocker {
        let _ = write!(line, " {}", blocker.kind.word());
    }
    let _ = write!(
        line,
        " in {:.0}ms, woken by {}",
        attempt.took_ms, attempt.woken_by
    );
    if let Some(next) = attempt.next_in_ms {
        let _ = write!(line, ", next in {}", age(next));
    }
    line
}

fn key(text: &mut String, key: &KeyReport) {
    let sign = match is_troubled(key) {
        true => '×',
        false => '√',
    };
    let owner = key.owner.as_deref().unwrap_or("nobody");
    let _ = write!(
        text,
        "{sign} {} {} (range {}, {owner})",
        key.controller, key.key, key.range
    );
    if !key.via.is_empty() {
        let _ = write!(text, ", by {}", key.via);
    }
    let mut state = key.state.clone();
    if let Some(waited) = key.waited_ms {
        let _ = write!(state, " for {}", age(waited));
    }
    if let Some(next) = key.next_in_ms {
        let _ = write!(state, ", next attempt in {}", age(next));
    }
    if key.failures > 0 {
        let _ = write!(state, ", {} failures in a row", key.failures);
    }
    let last = key.last.as_ref();
    if !is_troubled(key) {
        let waits = last
            .and_then(|last| last.waits_for.as_ref())
            .map(|why| format!(", waits for a change: {why}"));
        let last = last.map(|last| format!(", last at {}: {}", time_of_day(&last.at), last.result));
        let end = waits.or(last).unwrap_or_default();
        let _ = writeln!(text, ": {state}{end}");
        return;
    }
    let _ = writeln!(text, "\n    state:    {state}");
    if let Some(blocker) = &key.blocker {
        blocked(text, "    ", "blocked:  ", blocker);
    }
    if let Some(last) = last {
        let _ = writeln!(text, "    error:    {}", last.result);
        for line in last.plan.iter().take(ATTEMPTS_SHOWN) {
            let _ = writeln!(text, "    planned:  {line}");
        }
    }
    let skipped = key.attempts.len().saturating_sub(ATTEMPTS_SHOWN);
    for attempt in key.attempts.iter().skip(skipped) {
        let _ = writeln!(text, "    attempt:  {}", attempt_line(attempt));
    }
}

/// `explain`. Without `wide`, keys that are at rest and are not the object's own are counted.
pub fn explain(explanation: &Explanation, wide: bool) -> String {
    let mut text = String::new();
    let mut own = String::new();
    if let Some(one) = &explanation.object {
        object(&mut text, one);
        own.clone_from(&one.name);
        text.push('\n');
    }
    let shown = |one: &&KeyReport| {
        let is_near = match one.via.is_empty() {
            true => one.key == own || own.is_empty(),
            false => one.last.is_some(),
        };
        wide || is_troubled(one) || is_near
    };
    let (shown, others): (Vec<&KeyReport>, Vec<&KeyReport>) =
        explanation.keys.iter().partition(shown);
    for one in &shown {
        key(&mut text, one);
    }
    if !others.is_empty() {
        let _ = writeln!(
            text,
            "- {} more keys are well: -o wide shows them",
            others.len()
        );
    }
    if explanation.keys.is_empty() && explanation.hidden.is_empty() {
        text += "- no controller that runs here has a key for it\n";
    }
    if explanation.omitted > 0 {
        let _ = writeln!(text, "- {} more keys are left out", explanation.omitted);
    }
    for one in &explanation.hidden {
        let _ = writeln!(
            text,
            "- {}: hidden, you need the right to {}",
            one.controller, one.needs
        );
    }
    missing(&mut text, &explanation.missing);
    text
}

/// `history` of an object's or a controller's keys.
pub fn history(explanation: &Explanation) -> String {
    let mut text = String::new();
    for key in explanation
        .keys
        .iter()
        .filter(|key| !key.attempts.is_empty())
    {
        let owner = key.owner.as_deref().unwrap_or("nobody");
        let _ = writeln!(
            text,
            "{} {} (range {}, {owner})",
            key.controller, key.key, key.range
        );
        text += &attempts(&key.attempts);
    }
    if text.is_empty() {
        text += "none of its keys has failed lately\n";
    }
    missing(&mut text, &explanation.missing);
    text
}

fn attempts(all: &[Attempt]) -> String {
    table(
        [
            "TIME", "RESULT", "CODE", "TOOK", "NEXT", "WOKEN BY", "ERROR",
        ],
        &[2, 3, 4],
        all.iter().map(|attempt| {
            [
                time_of_day(&attempt.at).to_owned(),
                attempt.result.clone(),
                attempt
                    .code
                    .map_or_else(String::new, |code| code.to_string()),
                format!("{:.0}ms", attempt.took_ms),
                attempt.next_in_ms.map_or_else(String::new, age),
                attempt.woken_by.clone(),
                attempt.error.replace('\n', " "),
            ]
        }),
    )
}

/// `history` without an object: the keys that failed lately.
pub fn unhappy(unhappy: &Unhappy) -> String {
    let mut text = match unhappy.keys.is_empty() {
        true => "no key has failed lately\n".to_owned(),
        false => table(
            [
                "KEY",
                "CONTROLLER",
                "OWNER",
                "FAILURES",
                "LAST",
                "BLOCKED BY",
            ],
            &[3],
            unhappy.keys.iter().map(|key| {
                let last = key.attempts.last();
                let blocked = match key.failures {
                    0 => "nothing: it has recovered".to_owned(),
                    _ => blocked_by(key),
                };
                [
                    key.key.clone(),
                    key.controller.clone(),
                    key.owner.clone(),
                    key.failures.to_string(),
                    last.map_or_else(String::new, |last| time_of_day(&last.at).to_owned()),
                    blocked,
                ]
            }),
        ),
    };
    if unhappy.hidden > 0 {
        let _ = writeln!(
            text,
            "- {} keys are hidden: you may not list their objects",
            unhappy.hidden
        );
    }
    if unhappy.omitted > 0 {
        let _ = writeln!(
            text,
            "- {} more keys are left out: give a namespace with -n",
            unhappy.omitted
        );
    }
    missing(&mut text, &unhappy.missing);
    text
}

#[cfg(test)]
mod tests;
