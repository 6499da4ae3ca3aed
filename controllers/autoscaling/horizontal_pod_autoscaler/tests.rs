mod course;
mod formula;
mod hazards;
mod limiting;
mod metrics;
mod parts;

impl super::Memory {
    /// The turn that was taken last.
    fn turn_number(&self) -> Option<i64> {
        self.turn
    }

    /// What it remembers of the past.
    fn past(&self) -> &super::history::History {
        &self.history
    }
}
