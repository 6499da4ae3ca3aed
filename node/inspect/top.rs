//! What is busy: rates of the last minutes.

use serde::{Deserialize, Serialize};

use crate::Missing;

/// Of [`Top`].
pub const TOP_SCHEMA: &str = "manifold.dev/top/v1";

/// What is busy. Rates halve each minute in which nothing happens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Top {
    /// [`TOP_SCHEMA`].
    pub schema: String,
    /// By controller, the busiest first.
    pub controllers: Vec<BusyController>,
    /// By range, the busiest first.
    pub ranges: Vec<BusyRange>,
    /// The busiest keys.
    pub keys: Vec<BusyKey>,
    /// Keys left out, since the caller may not list their objects.
    pub hidden: usize,
    /// Replicas without an answer.
    pub missing: Vec<Missing>,
}

/// One controller, in all ranges.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BusyController {
    /// Its name.
    pub controller: String,
    /// Keys known.
    pub keys: usize,
    /// Keys that wait.
    pub queued: usize,
    /// Keys that failed when they were last reconciled.
    pub failing: usize,
    /// Reconciles a second.
    pub rate: f64,
    /// Seconds of reconciling a second.
    pub load: f64,
}

/// One range, of all controllers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BusyRange {
    /// Its number.
    pub range: u16,
    /// The replica that owns it.
    pub owner: String,
    /// Keys known.
    pub keys: usize,
    /// Keys that wait.
    pub queued: usize,
    /// Reconciles a second.
    pub rate: f64,
    /// Seconds of reconciling a second.
    pub load: f64,
}

/// One key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BusyKey {
    /// Its controller.
    pub controller: String,
    /// Namespace and name.
    pub key: String,
    /// The resource whose objects the controller's keys are, as in `deployments.apps`.
    pub resource: String,
    /// Its range.
    pub range: u16,
    /// The replica that owns it.
    pub owner: String,
    /// Failures in a row.
    pub failures: u32,
    /// Reconciles a second.
    pub rate: f64,
    /// Seconds of reconciling a second.
    pub load: f64,
}
