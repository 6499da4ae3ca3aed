//! Expressions cut into tokens. Positions count code points.

/// A token and where it begins.
#[derive(Clone, Debug)]
pub struct Token {
    /// What it is.
    pub kind: Kind,
    /// The code point at which it begins.
    pub at: u32,
}

/// What a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A name. Reserved words are names here; `in`, `true`, `false` and `null` are [`Kind::Sign`]s.
    Name(String),
    /// A signed or unsigned integer: its text without suffix.
    Int(String),
    /// As [`Kind::Int`], with the suffix `u`.
    Uint(String),
    /// A floating-point number.
    Double,
    /// A text, without quotes and escapes.
    String(String),
    /// Bytes.
    Bytes,
    /// An operator, a bracket or one of the four words above.
    Sign(&'static str),
    /// The end.
    End,
}

/// Longer ones first.
const SIGNS: [&str; 24] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!",
    "?", ":", "+", "*", "/", "%",
];
const WORDS: [&str; 4] = ["in", "true", "false", "null"];

struct Lexer<'a> {
    chars: &'a [char],
    at: usize,
}

/// The tokens of an expression, [`Kind::End`] last; `None` where it is malformed.
pub fn tokens(chars: &[char]) -> Option<Vec<Token>> {
    let mut lexer = Lexer { chars, at: 0 };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blanks();
        let at = u32::try_from(lexer.at).ok()?;
        let kind = lexer.token()?;
        let is_end = kind == Kind::End;
        tokens.push(Token { kind, at });
        if is_end {
            return Some(tokens);
        }
    }
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn starts_with(&self, text: &str) -> bool {
        let mut ahead = 0;
        text.chars().all(|wanted| {
            ahead += 1;
            self.chars.get(self.at + ahead - 1) == Some(&wanted)
        })
    }

    fn skip_blanks(&mut self) {
        while self.at < self.chars.len() {
            match self.peek(0) {
                '\t' | ' ' | '\r' | '\n' | '\u{c}' => self.at += 1,
                '/' if self.peek(1) == '/' => {
                    while self.at < self.chars.len() && self.peek(0) != '\n' {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let start = self.at;
        while self.at < self.chars.len() && wanted(self.peek(0)) {
            self.at += 1;
        }
        self.chars[start..self.at].iter().collect()
    }

    fn token(&mut self) -> Option<Kind> {
        if self.at >= self.chars.len() {
            return Some(Kind::End);
        }
        let is_quote = |sign: char| sign == '"' || sign == '\'';
        match (self.peek(0), self.peek(1), self.peek(2)) {
            (first, ..) if is_quote(first) => self.string(0, false, false),
            ('r' | 'R', second, _) if is_quote(second) => self.string(1, true, false),
            ('b' | 'B', second, _) if is_quote(second) => self.string(1, false, true),
            ('b' | 'B', 'r' | 'R', third) if is_quote(third) => self.string(2, true, true),
            (first, second, _)
                if first.is_ascii_digit() || (first == '.' && second.is_ascii_digit()) =>
            {
                self.number()
            }
            (first, ..) if first.is_ascii_alphabetic() || first == '_' => {
                let name = self.take_while(|sign| sign.is_ascii_alphanumeric() || sign == '_');
                let word = WORDS.into_iter().find(|word| *word == name);
                Some(word.map_or(Kind::Name(name), Kind::Sign))
            }
            _ => {
                let sign = SIGNS.into_iter().find(|sign| self.starts_with(sign))?;
                self.at += sign.len();
                Some(Kind::Sign(sign))
            }
        }
    }

    fn exponent(&mut self) -> bool {
        if !matches!(self.peek(0), 'e' | 'E') {
            return false;
        }
        let sign = usize::from(matches!(self.peek(1), '+' | '-'));
        if !self.peek(1 + sign).is_ascii_digit() {
            return false;
        }
        self.at += 1 + sign;
        self.take_while(|sign| sign.is_ascii_digit());
        true
    }

    fn number(&mut self) -> Option<Kind> {
        let mut text = String::new();
        let start = self.at;
        if self.peek(0) == '0' && self.peek(1) == 'x' && self.peek(2).is_ascii_hexdigit() {
            self.at += 2;
            text.push_str("0x");
            text.push_str(&self.take_while(|sign| sign.is_ascii_hexdigit()));
        } else {
            text.push_str(&self.take_while(|sign| sign.is_ascii_digit()));
            let mut is_double = false;
            if self.peek(0) == '.' && self.peek(1).is_ascii_digit() {
                self.at += 1;
                self.take_while(|sign| sign.is_ascii_digit());
                is_double = true;
            }
            if self.exponent() || is_double {
                let text: String = self.chars[start..self.at].iter().collect();
                let value: f64 = text.parse().ok()?;
                return value.is_finite().then_some(Kind::Double);
            }
        }
        if matches!(self.peek(0), 'u' | 'U') {
            self.at += 1;
            return Some(Kind::Uint(text));
        }
        Some(Kind::Int(text))
    }

    /// A text or bytes whose quote follows after `prefix` code points.
    fn string(&mut self, prefix: usize, is_raw: bool, is_bytes: bool) -> Option<Kind> {
        self.at += prefix;
        let quote = self.peek(0);
        let triple = self.peek(1) == quote && self.peek(2) == quote;
        let text = match triple.then(|| self.quoted(quote, 3, is_raw)).flatten() {
            Some(text) => text,
            None => self.quoted(quote, 1, is_raw)?,
        };
        if is_bytes {
            unescaped(&text, is_raw, true)?;
            return Some(Kind::Bytes);
        }
        unescaped(&text, is_raw, false).map(Kind::String)
    }

    /// Reads the text between `width` quotes, and moves behind it.
    fn quoted(&mut self, quote: char, width: usize, is_raw: bool) -> Option<Vec<char>> {
        let start = self.at + width;
        let mut at = start;
        loop {
            let sign = *self.chars.get(at)?;
            if sign == '\\' && !is_raw {
                at += 2;
            } else if sign == quote
                && (width == 1
                    || (self.chars.get(at + 1) == Some(&quote)
                        && self.chars.get(at + 2) == Some(&quote)))
            {
                self.at = at + width;
                return Some(self.chars[start..at].to_vec());
            } else if width == 1 && matches!(sign, '\n' | '\r') {
                return None;
            } else {
                at += 1;
            }
        }
    }
}

fn digits(text: &[char], radix: u32) -> Option<u32> {
    text.iter().try_fold(0_u32, |value, sign| {
        value.checked_mul(radix)?.checked_add(sign.to_digit(radix)?)
    })
}

/// A text with its escapes resolved; `None` where one of them is malformed.
fn unescaped(text: &[char], is_raw: bool, is_bytes: bool) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let sign = text[at];
        at += 1;
        if sign == '\r' {
            // Line ends of other systems count as one.
            if text.get(at) == Some(&'\n') {
                at += 1;
            }
            out.push('\n');
            continue;
        }
        if sign != '\\' || is_raw {
            out.push(sign);
            continue;
        }
        let escape = *text.get(at)?;
        at += 1;
        // The position, number and radix of a code's digits.
        let digits_of = match escape {
            '0'..='3' => Some((at - 1, 3, 8)),
            'x' | 'X' => Some((at, 2, 16)),
            'u' if !is_bytes => Some((at, 4, 16)),
            'U' if !is_bytes => Some((at, 8, 16)),
            _ => None,
        };
        let from = match digits_of {
            None => None,
            Some((start, count, radix)) => {
                at = start + count;
                let value = digits(text.get(start..at)?, radix)?;
                // What bytes are does not matter to their type.
                Some(match is_bytes {
                    true => '?',
                    false => char::from_u32(value)?,
                })
            }
        };
        out.push(match (from, escape) {
            (Some(code), _) => code,
            (None, 'a') => '\u{7}',
            (None, 'b') => '\u{8}',
            (None, 'f') => '\u{c}',
            (None, 'n') => '\n',
            (None, 'r') => '\r',
            (None, 't') => '\t',
            (None, 'v') => '\u{b}',
            (None, '\\' | '\'' | '"' | '`' | '?') => escape,
            _ => return None,
        });
    }
    Some(out)
}
