//! What the calls of a run logged, until it is known what became of the run.

use crate::handler::LogLines;

/// The lines of a run's calls. Dropped without a commit, they are written as what did not happen.
#[derive(Default)]
pub(super) struct RunLogs(Vec<LogLines>);

impl RunLogs {
    pub(super) fn push(&mut self, lines: LogLines) {
        self.0.push(lines);
    }

    /// Writes the lines at their own levels.
    pub(super) fn committed(mut self) {
        for lines in std::mem::take(&mut self.0) {
            lines.emit_committed();
        }
    }
}

impl Drop for RunLogs {
    fn drop(&mut self) {
        for lines in &self.0 {
            lines.emit_rolled_back();
        }
    }
}
