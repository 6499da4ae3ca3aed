//! Errors as cel-go shows them: sorted by position, each with its line and a mark below it.

/// Errors that are shown; the others are counted.
const SHOWN_MAX: usize = 100;
/// Bytes of a line that is shown.
const LINE_MAX: usize = 16_384;

/// The errors of one expression.
#[derive(Default)]
pub struct Report {
    errors: Vec<(u32, String)>,
    count: usize,
}

impl Report {
    /// Adds an error at a code point.
    pub fn add(&mut self, at: u32, message: String) {
        self.count += 1;
        if self.errors.len() < SHOWN_MAX {
            self.errors.push((at, message));
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All in one text.
    pub fn show(mut self, source: &[char]) -> String {
        self.errors.sort_by_key(|(at, _)| *at);
        let mut shown: Vec<String> = self
            .errors
            .iter()
            .map(|(at, message)| one(*at as usize, message, source))
            .collect();
        if self.count > SHOWN_MAX {
            let more = self.count - SHOWN_MAX;
            shown.push(format!("{more} more errors were truncated"));
        }
        shown.join("\n")
    }
}

fn one(at: usize, message: &str, source: &[char]) -> String {
    let before = &source[..at.min(source.len())];
    let line = 1 + before.iter().filter(|sign| **sign == '\n').count();
    let start = before
        .iter()
        .rposition(|sign| *sign == '\n')
        .map_or(0, |end| end + 1);
    let column = at - start;
    let rest = &source[start..];
    let end = rest
        .iter()
        .position(|sign| *sign == '\n')
        .unwrap_or(rest.len());
    let text = &rest[..end];
    let mut shown = format!("ERROR: <input>:{line}:{}: {message}", column + 1);
    if text.iter().map(|sign| sign.len_utf8()).sum::<usize>() > LINE_MAX {
        return shown;
    }
    shown.push_str("\n | ");
    shown.extend(
        text.iter()
            .map(|sign| if *sign == '\t' { ' ' } else { *sign }),
    );
    shown.push_str("\n | ");
    let marks = text.iter().take(column);
    shown.extend(marks.map(|sign| if sign.is_ascii() { '.' } else { '\u{ff0e}' }));
    let is_wide = text.get(column).is_some_and(|sign| !sign.is_ascii());
    shown.push(if is_wide { '\u{ff3e}' } else { '^' });
    shown
}
