//! Where a statement's parameters stand.

use std::ops::Range;

use super::scanner::Scanner;
use crate::store::{SqlError, StoreKind};

/// Returns where each `$n` of a statement for PostgreSQL stands, and its number.
///
/// # Errors
/// As `check`: the statement can't be scanned.
pub(crate) fn postgres_params(statement: &str) -> Result<Vec<(Range<usize>, usize)>, SqlError> {
    let mut scanner = Scanner {
        kind: StoreKind::Postgres,
        text: statement,
        at: 0,
    };
    let mut found = Vec::new();
    while let Some((_, start)) = scanner.next_token()? {
        let token = &statement[start..scanner.at];
        // A dollar quote does not begin with a digit.
        if let Some(number) = token
            .strip_prefix('$')
            .and_then(|digits| digits.parse().ok())
        {
            found.push((start..scanner.at, number));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_outside_strings_names_and_comments() {
        let statement = "SELECT $1, '$2', \"$3\", $$ $4 $$, a$5, E'\\'$6' /* $7 /* $8 */ */, $12::int -- $9\n+$1";
        let found: Vec<(&str, usize)> = postgres_params(statement)
            .unwrap()
            .into_iter()
            .map(|(place, number)| (&statement[place], number))
            .collect();
        assert_eq!(found, [("$1", 1), ("$12", 12), ("$1", 1)]);
    }
}
