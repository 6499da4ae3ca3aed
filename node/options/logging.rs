//! How logs are written.

use crate::args::{self, Values};

/// How logs are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggingOptions {
    /// JSON, one object a line, instead of text.
    pub json: bool,
    /// `-v`.
    pub verbosity: i64,
    /// `--vmodule`.
    pub modules: Vec<(String, i64)>,
}

/// By the flags.
pub(super) fn of(values: &Values, wrong: &mut Vec<String>) -> LoggingOptions {
    let format = values.text("logging-format");
    if !["text", "json"].contains(&format) {
        wrong.push(format!(
            "format: Invalid value: {format:?}: --logging-format must be text or json"
        ));
    }
    let modules = args::module_levels(values.text("vmodule"));
    if format == "json" && !modules.is_empty() {
        wrong.push("--vmodule works with --logging-format=text only".to_owned());
    }
    LoggingOptions {
        json: format == "json",
        verbosity: values.int("v"),
        modules,
    }
}
