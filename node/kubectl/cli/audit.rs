//! `kubectl manifold audit`.

use std::{path::PathBuf, time::Duration};

use audit_log::{AuditLog, Owned, Ownership};
use jiff::SignedDuration;
use serde::Serialize;

use super::Common;
use crate::reach::Trouble;

/// Writes that `audit` judges at once: some 200 bytes each.
const WRITES_MAX: usize = 10_000_000;

/// Whether there is nothing to complain of.
pub(super) fn audit(
    common: &Common,
    logs: &[PathBuf],
    fleet: &str,
    unowned: Duration,
) -> Result<bool, Trouble> {
    let judged = judge(logs, fleet, unowned)?;
    common.print(&judged, |judged, _| judged.text())?;
    Ok(judged.complaints.is_empty())
}

/// What these audit logs prove of a fleet.
pub(super) fn judge(logs: &[PathBuf], fleet: &str, unowned: Duration) -> Result<Judged, Trouble> {
    let mut ownership = Ownership::of(fleet);
    let mut read = 0_usize;
    for log in logs {
        let name = log.display();
        if !log.is_file() {
            return Err(format!("{name}: no such file: give an API server's audit log").into());
        }
        AuditLog::open(log)
            .read(|record| {
                read += 1;
                ownership.read(&record);
            })
            .map_err(|why| format!("{why:#}"))?;
        if ownership.writes() > WRITES_MAX {
            let why = format!("more than {WRITES_MAX} writes by {name}: judge fewer files at once");
            return Err(why.into());
        }
    }
    let unowned = SignedDuration::try_from(unowned).map_err(|why| why.to_string())?;
    let judged = Judged::of(read, &ownership.verdict(unowned));
    if judged.changes == 0 && judged.complaints.is_empty() {
        return Err(format!(
            "no Lease of fleet {fleet:?} is written with its body in {read} requests: see --print-policy and --fleet-name"
        )
        .into());
    }
    Ok(judged)
}

/// What `audit` prints.
#[derive(Serialize)]
pub(super) struct Judged {
    pub(super) schema: &'static str,
    pub(super) records: usize,
    pub(super) writes: usize,
    pub(super) changes: usize,
    pub(super) refused: usize,
    pub(super) silences: usize,
    pub(super) longest_unowned_ms: Option<i128>,
    pub(super) complaints: Vec<String>,
}

impl Judged {
    fn of(records: usize, owned: &Owned) -> Self {
        Self {
            schema: "manifold.dev/audit/v1",
            records,
            writes: owned.writes,
            changes: owned.changes,
            refused: owned.refused,
            silences: owned.silences,
            longest_unowned_ms: owned.longest.map(|(longest, ..)| longest.as_millis()),
            complaints: owned.complaints.clone(),
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{} requests, {} writes that name range and epoch, {} changes of owner\n",
            self.records, self.writes, self.changes
        );
        if self.refused > 0 {
            text += &format!(
                "{} writes of an older epoch, all refused by the API server or withdrawn\n",
                self.refused
            );
        }
        if let Some(longest) = self.longest_unowned_ms {
            text += &format!("no range was without an owner for longer than {longest}ms\n");
        }
        for complaint in &self.complaints {
            text += &format!("× {complaint}\n");
        }
        if self.complaints.is_empty() {
            text += "√ each range had one writer at a time\n";
        }
        text
    }
}
