//! What a statement that passed the guard writes to, and what in it may differ from run to run. For `hapax test`, which says it to
//! people: it reads tokens, and where these do not tell it says less.
//!
//! **Invariant**: nothing here decides whether a statement is run.

use super::scanner::{Scanner, Token};
use crate::store::StoreKind;

/// Calls that give something else in each run, whatever they are called with.
const CALLS: &[&str] = &[
    "array_sample",
    "array_shuffle",
    "clock_timestamp",
    "currval",
    "gen_random_uuid",
    "lastval",
    "nextval",
    "now",
    "pg_current_xact_id",
    "random",
    "random_normal",
    "randomblob",
    "statement_timestamp",
    "timeofday",
    "transaction_timestamp",
    "txid_current",
    "uuidv4",
    "uuidv7",
];

/// The same without parentheses.
const WORDS: &[&str] = &[
    "current_date",
    "current_time",
    "current_timestamp",
    "localtime",
    "localtimestamp",
];

/// SQLite's functions that give the time for `'now'`, and for no argument at all.
const TIMES: &[&str] = &[
    "date",
    "datetime",
    "julianday",
    "strftime",
    "time",
    "unixepoch",
];

/// What was read of a statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The table that it writes to, without its schema, as written.
    pub(crate) table: Option<String>,
    /// The columns that an INSERT names; `None` if it names none.
    pub(crate) columns: Option<Vec<String>>,
    /// True if it inserts rows.
    pub(crate) inserts: bool,
    /// What may differ from run to run.
    pub(crate) differing: Vec<Differing>,
}

/// Something that may differ from run to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Differing {
    /// As people name it: `now()`, `LIMIT without ORDER BY`.
    pub(crate) what: String,
    /// Where that goes.
    pub(crate) reaches: Reaches,
    /// For a LIMIT: the one table that is read, and the columns that must equal something. With a whole key among them there is but
    /// one row.
    pub(crate) picks_from: Option<(String, Vec<String>)>,
}

/// Where a value of a statement goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reaches {
    /// Into the column with this name.
    Column(String),
    /// Into the column with this place, from 0, of a table whose columns the statement does not name.
    ColumnAt(usize),
    /// To the handler, in what the statement returns.
    Result,
    /// Into the choice of rows.
    Condition,
}

/// What is known of a token.
struct Word {
    /// In lower case, if it is a word or a name; a symbol as it is.
    text: String,
    /// As written.
    written: String,
    /// True for a word without quotes.
    is_word: bool,
    is_text: bool,
    depth: usize,
    /// Counts parentheses: tokens of one number stand directly in the same ones.
    group: usize,
}

impl Word {
    fn is(&self, word: &str) -> bool {
        self.is_word && self.text == word
    }

    fn is_symbol(&self, symbol: char) -> bool {
        !self.is_word
            && !self.is_text
            && self.text.len() == symbol.len_utf8()
            && self.text.starts_with(symbol)
    }

    fn is_name(&self) -> bool {
        !self.text.is_empty() && (self.is_word || self.written.starts_with('"'))
    }
}

/// Returns what in an expression, such as a column's default, may differ from run to run.
pub(crate) fn differing_in(kind: StoreKind, expression: &str) -> Option<String> {
    let words = words(kind, expression);
    (0..words.len()).find_map(|at| differs(kind, &words, at))
}

/// Reads a statement. One that can't be cut into tokens says nothing.
pub(crate) fn read(kind: StoreKind, statement: &str) -> Reading {
    let words = words(kind, statement);
    let mut reading = Reading::default();
    let mut clause = Clause::Start;
    for at in 0..words.len() {
        clause = clause.next(&words, at, &mut reading);
        let reaches = clause.reaches(&reading);
        if let Some(what) = differs(kind, &words, at) {
            reading.differing.push(Differing {
                what,
                reaches,
                picks_from: None,
            });
        } else if is_unordered_limit(&words, at) {
            reading.differing.push(Differing {
                what: "LIMIT without ORDER BY".to_owned(),
                reaches: match clause {
                    // It stands behind the columns that it decides about.
                    Clause::Rest if reading.table.is_none() => Reaches::Result,
                    _ => reaches,
                },
                picks_from: picks_from(&words, at),
            });
        }
    }
    reading
}

fn words(kind: StoreKind, text: &str) -> Vec<Word> {
    let mut scanner = Scanner { kind, text, at: 0 };
    let mut words: Vec<Word> = Vec::new();
    let mut open = vec![0];
    let mut groups = 0;
    while let Ok(Some((token, _))) = scanner.next_token() {
        let (text, written, is_word, is_text) = match token {
            Token::Word(word) => (word.to_ascii_lowercase(), word.to_owned(), true, false),
            Token::Quoted(name) => (name.clone(), format!("\"{name}\""), false, false),
            Token::Text(text) => (text.clone(), text, false, true),
            Token::Symbol(symbol) => (symbol.to_string(), symbol.to_string(), false, false),
            Token::Param(_) | Token::Other => (String::new(), String::new(), false, false),
        };
        let is_symbol = !is_word && !is_text && text == written;
        if is_symbol && text == ")" && open.len() > 1 {
            open.pop();
        }
        words.push(Word {
            depth: open.len() - 1,
            group: open.last().copied().unwrap_or(0),
            text,
            written,
            is_word,
            is_text,
        });
        if is_symbol && words.last().is_some_and(|word| word.text == "(") {
            groups += 1;
            open.push(groups);
        }
    }
    words
}

/// Returns what at this token differs from run to run, as people name it.
fn differs(kind: StoreKind, words: &[Word], at: usize) -> Option<String> {
    let word = &words[at];
    if word.is_text || word.text.is_empty() {
        return None;
    }
    let is_call = words.get(at + 1).is_some_and(|next| next.is_symbol('('));
    let is_behind_dot = at > 0 && words[at - 1].is_symbol('.');
    let name = word.text.as_str();
    if is_call && CALLS.contains(&name) {
        return Some(format!("{name}()"));
    }
    if word.is_word
        && WORDS.contains(&name)
        && !is_behind_dot
        && !(is_call && kind == StoreKind::Sqlite)
    {
        return Some(name.to_uppercase());
    }
    if kind == StoreKind::Sqlite && is_call && TIMES.contains(&name) {
        let group = words.get(at + 2)?.group;
        let inside: Vec<&Word> = words[at + 2..]
            .iter()
            .take_while(|inner| inner.group >= group)
            .collect();
        let is_now = inside
            .iter()
            .any(|inner| inner.is_text && inner.text.eq_ignore_ascii_case("now"));
        if is_now || words.get(at + 2)?.is_symbol(')') {
            return Some(format!("{name}('now')"));
        }
    }
    None
}

/// True for a LIMIT that takes some of rows in no order.
fn is_unordered_limit(words: &[Word], at: usize) -> bool {
    let word = &words[at];
    let is_limit = word.is("limit")
        || (word.is("fetch")
            && words
                .get(at + 1)
                .is_some_and(|next| next.is("first") || next.is("next")));
    if !is_limit || words.get(at + 1).is_none_or(|next| next.is("all")) {
        return false;
    }
    let same = words[..at]
        .iter()
        .filter(|before| before.group == word.group);
    let mut is_query = false;
    let mut is_ordered = false;
    let mut last_order = false;
    for before in same {
        is_query |= before.is("select") || before.is("values") || before.is("table");
        is_ordered |= last_order && before.is("by");
        last_order = before.is("order");
    }
    is_query && !is_ordered
}

/// Returns the one table that the query with the LIMIT at `at` reads, and the columns that must equal something.
fn picks_from(words: &[Word], at: usize) -> Option<(String, Vec<String>)> {
    let group = words[at].group;
    let query: Vec<&Word> = words[..at]
        .iter()
        .filter(|word| word.group == group)
        .collect();
    let from = query.iter().rposition(|word| word.is("from"))?;
    let condition = query.iter().rposition(|word| word.is("where"))?;
    if condition < from || query[condition..].iter().any(|word| word.is("or")) {
        return None;
    }
    let tables = &query[from + 1..condition];
    if tables
        .iter()
        .any(|word| word.is_symbol(',') || word.is("join") || word.is_symbol('('))
    {
        return None;
    }
    let mut name = tables.first()?;
    if tables.get(1).is_some_and(|word| word.is_symbol('.')) {
        name = tables.get(2)?;
    }
    let columns = query[condition..]
        .windows(2)
        .filter(|pair| pair[0].is_name() && pair[1].is_symbol('='))
        .map(|pair| pair[0].text.clone())
        .collect();
    Some((name.text.clone(), columns))
}

/// Where in the statement proper a token stands.
#[derive(Clone, Debug)]
enum Clause {
    Start,
    With,
    /// What is written to is named next.
    Target,
    /// Behind its name.
    Named,
    /// Names of columns, in parentheses.
    Columns,
    /// Rows of values, at the place with this number.
    Values(usize),
    /// What a query selects, at the place with this number.
    Selected(usize),
    /// What is assigned to a column.
    Assigned(Option<String>),
    Returned,
    /// FROM, WHERE and so on.
    Rest,
}

impl Clause {
    fn next(self, words: &[Word], at: usize, reading: &mut Reading) -> Self {
        let word = &words[at];
        let next_is = |text: char| words.get(at + 1).is_some_and(|next| next.is_symbol(text));
        if word.depth == 0 && word.is_word {
            match word.text.as_str() {
                "with" if matches!(self, Self::Start) => return Self::With,
                "insert" | "replace" | "merge"
                    if matches!(self, Self::Start | Self::With) && !next_is('(') =>
                {
                    reading.inserts = word.text != "merge";
                    return Self::Rest;
                }
                // MERGE's.
                "insert" if reading.table.is_some() => {
                    reading.inserts = true;
                    return Self::Named;
                }
                "update" if matches!(self, Self::Start | Self::With) => return Self::Target,
                // `ON CONFLICT .. DO UPDATE SET`, and `FOR UPDATE`.
                "update" => return Self::Rest,
                "delete" if matches!(self, Self::Start | Self::With) => return Self::Rest,
                "into" => return Self::Target,
                "from" if at > 0 && words[at - 1].is("delete") => return Self::Target,
                "only" if matches!(self, Self::Target) => return Self::Target,
                "values" => return Self::Values(0),
                "select" => return Self::Selected(0),
                "set" => return Self::Assigned(None),
                "returning" => return Self::Returned,
                "from" | "where" | "on" | "limit" | "order" | "group" | "having" | "union"
                | "using" | "fetch" => {
                    return match self {
                        Self::With => Self::With,
                        _ => Self::Rest,
                    };
                }
                _ => {}
            }
        }
        match self {
            Self::Target if word.is_name() => {
                if next_is('.') {
                    return Self::Target;
                }
                reading.table = Some(word.text.clone());
                Self::Named
            }
            Self::Named if reading.inserts && word.is_symbol('(') => {
                reading.columns = Some(Vec::new());
                Self::Columns
            }
            Self::Columns if word.is_name() => {
                if let Some(columns) = &mut reading.columns {
                    columns.push(word.text.clone());
                }
                Self::Columns
            }
            Self::Columns if word.is_symbol(')') => Self::Rest,
            Self::Values(place) => match word.depth {
                0 => Self::Values(0),
                1 if word.is_symbol(',') => Self::Values(place + 1),
                _ => Self::Values(place),
            },
            Self::Selected(place) if word.depth == 0 && word.is_symbol(',') => {
                Self::Selected(place + 1)
            }
            Self::Assigned(_) if word.depth == 0 && word.is_symbol(',') => Self::Assigned(None),
            Self::Assigned(None) if word.depth == 0 && word.is_name() => {
                Self::Assigned(Some(word.text.clone()))
            }
            clause => clause,
        }
    }

    fn reaches(&self, reading: &Reading) -> Reaches {
        match self {
            Self::Values(place) | Self::Selected(place) if reading.table.is_some() => {
                match &reading.columns {
                    Some(columns) => columns
                        .get(*place)
                        .map_or(Reaches::ColumnAt(*place), |name| {
                            Reaches::Column(name.clone())
                        }),
                    None => Reaches::ColumnAt(*place),
                }
            }
            Self::Values(_) | Self::Selected(_) | Self::Returned => Reaches::Result,
            Self::Assigned(Some(column)) => Reaches::Column(column.clone()),
            _ => Reaches::Condition,
        }
    }
}

#[cfg(test)]
mod tests;
