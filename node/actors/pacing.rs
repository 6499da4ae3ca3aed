//! When a key may report or be planned again. Pure.

use std::time::Duration;

use crate::queue::Monotonic;
use crate::reconcile::ReportFrom;

/// Status reports of one key are at least this far apart; the last one is always written.
pub const REPORT_SPACING: Duration = Duration::from_millis(200);

/// The same of how far something has come, and of a key that continues reporting, after [`REPORTS_DENSE`]:
/// what happens to many need not be reported each time. Still within half a second.
pub const REPORT_SPACING_STEADY: Duration = Duration::from_millis(450);

/// This many reports in a row are [`REPORT_SPACING`] apart: what happens to few is reported each time.
pub const REPORTS_DENSE: u32 = 5;

/// A key that could have reported for so long and has not begins a new row.
pub(super) const REPORTS_QUIET: Duration = Duration::from_secs(1);

/// By how much longer a spaced key waits for each further report that its last plan wrote: upstream writes
/// such one after the other, which takes longer the more there are.
const REPORT_SPACING_EACH: Duration = Duration::from_millis(20);

/// The same where its plan is expensive: the wait then counts from the plan's beginning.
const REPORT_SPACING_EACH_EXPENSIVE: Duration = Duration::from_millis(50);

/// What a spaced key waits at most: what it reports must be known within a second.
const REPORT_SPACING_MAX: Duration = Duration::from_millis(700);

/// When a key that has reported may report again: `row` counts the reports of its row, `written` is what its
/// plan wrote, `objects` what it examined, `began` its beginning and `now` its end. What an expensive plan
/// of a spaced key and its writes take is part of the wait; otherwise the next one would come later by both
/// where the server is slow.
pub(super) fn report_from(
    min_sync_interval: Option<Duration>,
    row: u32,
    written: u64,
    objects: usize,
    (began, now): (Monotonic, Monotonic),
) -> ReportFrom {
    if min_sync_interval.is_none() {
        let dense = match row > REPORTS_DENSE {
            true => REPORT_SPACING_STEADY,
            false => REPORT_SPACING,
        };
        return ReportFrom {
            seen: now + dense,
            underway: now + REPORT_SPACING_STEADY,
        };
    }
    let more = u32::try_from(written.saturating_sub(1)).unwrap_or(u32::MAX);
    let spacing = plan_spacing(min_sync_interval, objects);
    let (from, least, each) = match spacing.is_zero() {
        true => (now, REPORT_SPACING, REPORT_SPACING_EACH),
        false => (
            began,
            REPORT_SPACING.max(spacing),
            REPORT_SPACING_EACH_EXPENSIVE,
        ),
    };
    let wait = each.saturating_mul(more).saturating_add(least);
    let from = from + wait.min(REPORT_SPACING_MAX);
    ReportFrom {
        seen: from,
        underway: from,
    }
}

/// How long after a plan began the next one of its key begins, for each object that was examined: what a
/// plan costs grows with them, and in a Job of thousands of pods each of them changes several times. Upstream
/// holds back what pods report to a Job for a second.
const PLAN_SPACING_EACH: Duration = Duration::from_micros(250);

/// Plans that examine fewer objects are cheap enough to follow each other at once.
const PLAN_SPACING_FROM: usize = 200;

/// What a key waits so at most.
const PLAN_SPACING_MAX: Duration = Duration::from_millis(500);

/// How long after the beginning of a plan that examined this many objects its key may be planned again. Its
/// controller's bound is [`controllers_kit::Descriptor::min_sync_interval`].
pub(super) fn plan_spacing(min_sync_interval: Option<Duration>, objects: usize) -> Duration {
    if objects < PLAN_SPACING_FROM {
        return Duration::ZERO;
    }
    let objects = u32::try_from(objects).unwrap_or(u32::MAX);
    PLAN_SPACING_EACH
        .saturating_mul(objects)
        .min(min_sync_interval.unwrap_or(PLAN_SPACING_MAX))
}
