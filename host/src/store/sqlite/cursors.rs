//! Cursors of a handler, on SQLite: the rows are taken once, at the opening, into a file.
//!
//! The driver runs one statement at a time on a connection, and SQLite itself does not say what a query that is half read sees
//! of later changes. A temporary table would expire every prepared statement of the connection, and mix the handler's
//! statement with the host's. The file has no name, lies beside the database, and is in memory while it is small.
//!
//! **Invariant**: in memory are a small piece of the file and the portion that is asked for, never all rows.

use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use sqlx::sqlite::SqliteRow;
use tempfile::SpooledTempFile;

use super::{SqliteSession, params};
use crate::store::cursors::not_a_query;
use crate::store::{
    Column, Cursor, CursorSession, FetchLimits, SqlError, StoreError, Value, records,
};

/// So many bytes of rows stay in memory; with more, they go to a file.
const MEMORY_BYTES: usize = 256 << 10;
/// The most bytes of one cursor's rows in its file.
const FILE_BYTES_MAX: u64 = 4 << 30;
const BUFFER_BYTES: usize = 64 << 10;

/// What is kept of an open cursor.
#[derive(Debug)]
pub(super) struct SqliteCursor {
    rows: BufReader<SpooledTempFile>,
    rows_left: u64,
    columns: usize,
}

impl CursorSession for SqliteSession {
    async fn open_cursor(
        &mut self,
        statement: &str,
        params: &[Value],
    ) -> Result<(Cursor, Arc<[Column]>), SqlError> {
        self.refuse_if_aborted()?;
        let cursor = self.cursors.next()?;
        let passed = self.verdict(statement)?;
        if !passed.reads {
            return Err(not_a_query());
        }
        if passed.params as usize != params.len() {
            return Err(records::wrong_count(passed.params as usize, params.len()));
        }
        let arguments = params::bind(params)?;
        let columns = self.columns_of(statement).await?;
        let folder = self.run_lock_path.parent().unwrap_or(Path::new(""));
        let mut writing = Writing::new(folder);
        self.run(statement, arguments, &mut |row| writing.take(row))
            .await?;
        let kept = match writing.done(columns.len()) {
            Ok(kept) => kept,
            Err(Failure::Sql(error)) => return Err(error),
            Err(Failure::File(error)) => return Err(self.no_file(&error)),
        };
        self.cursors.opened(cursor, self.savepoints.last(), kept);
        Ok((cursor, columns))
    }

    async fn fetch_cursor(
        &mut self,
        cursor: Cursor,
        limits: FetchLimits,
    ) -> Result<Vec<Vec<Value>>, SqlError> {
        self.refuse_if_aborted()?;
        match self.cursors.get(cursor)?.fetch(limits) {
            Ok(rows) => Ok(rows),
            Err(Failure::Sql(error)) => {
                self.cursors.forget(cursor);
                Err(error)
            }
            Err(Failure::File(error)) => Err(self.no_file(&error)),
        }
    }

    async fn close_cursor(&mut self, cursor: Cursor) {
        self.cursors.forget(cursor);
    }

    async fn close_cursors(&mut self) {
        self.cursors.forget_all();
    }
}

impl SqliteSession {
    /// A disk that is full, or worse: no fault of the message.
    fn no_file(&mut self, error: &std::io::Error) -> SqlError {
        let text = format!("a cursor's rows can't be kept beside the database: {error}");
        self.aborted = true;
        self.savepoints.lose();
        self.fault = Some(StoreError::Unavailable(text.clone()));
        SqlError {
            retryable: true,
            ..SqlError::new("unavailable", text)
        }
    }
}

#[derive(Debug)]
enum Failure {
    Sql(SqlError),
    File(std::io::Error),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::File(error)
    }
}

/// The rows on their way into the file.
struct Writing {
    file: BufWriter<SpooledTempFile>,
    rows: u64,
    bytes: u64,
    failure: Option<Failure>,
}

impl Writing {
    fn new(folder: &Path) -> Self {
        let folder = if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        };
        Self {
            file: BufWriter::with_capacity(
                BUFFER_BYTES,
                SpooledTempFile::new_in(MEMORY_BYTES, folder),
            ),
            rows: 0,
            bytes: 0,
            failure: None,
        }
    }

    /// False: enough.
    fn take(&mut self, row: &SqliteRow) -> bool {
        let written = params::read(row)
            .map_err(Failure::Sql)
            .and_then(|values| self.write(&values));
        if let Err(failure) = written {
            self.failure = Some(failure);
        }
        self.failure.is_none()
    }

    fn write(&mut self, values: &[Value]) -> Result<(), Failure> {
        self.rows += 1;
        for value in values {
            self.bytes += value.bytes() as u64;
            if self.bytes > FILE_BYTES_MAX {
                return Err(Failure::Sql(SqlError {
                    hint: Some("ask for fewer or smaller rows".into()),
                    ..SqlError::new(
                        "limit.bytes",
                        format!("the cursor has more than {FILE_BYTES_MAX} bytes of rows"),
                    )
                }));
            }
            write_value(&mut self.file, value)?;
        }
        Ok(())
    }

    fn done(self, columns: usize) -> Result<SqliteCursor, Failure> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let mut file = self
            .file
            .into_inner()
            .map_err(|error| Failure::File(error.into_error()))?;
        file.seek(SeekFrom::Start(0))?;
        Ok(SqliteCursor {
            rows: BufReader::with_capacity(BUFFER_BYTES, file),
            rows_left: self.rows,
            columns,
        })
    }
}

impl SqliteCursor {
    fn fetch(&mut self, limits: FetchLimits) -> Result<Vec<Vec<Value>>, Failure> {
        let mut rows = Vec::new();
        let mut bytes = 0;
        while self.rows_left > 0 && (rows.len() as u64) < limits.rows && bytes < limits.bytes {
            let mut row = Vec::with_capacity(self.columns);
            for _ in 0..self.columns {
                let value = read_value(&mut self.rows)?;
                bytes += value.bytes();
                row.push(value);
            }
            if bytes > records::RESULT_MAX_BYTES {
                return Err(Failure::Sql(records::too_many_bytes()));
            }
            self.rows_left -= 1;
            rows.push(row);
        }
        Ok(rows)
    }
}

// In the file each value is a byte that says what it is, and its bytes; those of text and blobs with their number before them.
const NULL: u8 = 0;
const INTEGER: u8 = 1;
const REAL: u8 = 2;
const TEXT: u8 = 3;
const BLOB: u8 = 4;
/// Text that is not UTF-8.
const ODD_TEXT: u8 = 5;

fn write_value(file: &mut impl Write, value: &Value) -> Result<(), Failure> {
    let mut long = |kind: u8, bytes: &[u8]| {
        file.write_all(&[kind])?;
        file.write_all(&(bytes.len() as u64).to_le_bytes())?;
        file.write_all(bytes)
    };
    match value {
        Value::Text(text) => long(TEXT, text.as_bytes())?,
        Value::Bytes(bytes) => long(BLOB, bytes)?,
        Value::Undecoded { bytes, .. } => long(ODD_TEXT, bytes)?,
        Value::Null => file.write_all(&[NULL])?,
        Value::Int64(number) => {
            file.write_all(&[INTEGER])?;
            file.write_all(&number.to_le_bytes())?;
        }
        Value::Float64(number) => {
            file.write_all(&[REAL])?;
            file.write_all(&number.to_bits().to_le_bytes())?;
        }
        other => {
            return Err(Failure::Sql(SqlError::new(
                "internal",
                format!("SQLite has no storage class for {}", other.kind()),
            )));
        }
    }
    Ok(())
}

fn read_value(file: &mut impl Read) -> Result<Value, Failure> {
    let mut kind = [0];
    file.read_exact(&mut kind)?;
    if kind[0] == NULL {
        return Ok(Value::Null);
    }
    let mut eight = [0; 8];
    file.read_exact(&mut eight)?;
    let mut long = || {
        let mut bytes = vec![0; usize::try_from(u64::from_le_bytes(eight)).unwrap_or(usize::MAX)];
        file.read_exact(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    let strange = |text: &str| Failure::File(std::io::Error::other(text.to_owned()));
    Ok(match kind[0] {
        INTEGER => Value::Int64(i64::from_le_bytes(eight)),
        REAL => Value::Float64(f64::from_bits(u64::from_le_bytes(eight))),
        TEXT => Value::Text(String::from_utf8(long()?).map_err(|_| strange("a text changed"))?),
        BLOB => Value::Bytes(long()?),
        ODD_TEXT => Value::Undecoded {
            type_name: "TEXT".into(),
            bytes: long()?,
        },
        _ => return Err(strange("a value has an unknown kind")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(rows: u64, bytes: usize) -> FetchLimits {
        FetchLimits { rows, bytes }
    }

    fn row(number: i64) -> Vec<Value> {
        vec![
            Value::Int64(number),
            Value::Null,
            Value::Float64(-0.0),
            Value::Text("\u{1f600}\0".repeat(20)),
            Value::Bytes((0..=255).collect()),
            Value::Undecoded {
                type_name: "TEXT".into(),
                bytes: vec![b'a', 0xff],
            },
        ]
    }

    #[test]
    fn rows_come_back_as_they_were_whether_in_memory_or_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        for count in [0, 1, 2_000] {
            let mut writing = Writing::new(folder.path());
            for number in 0..count {
                writing.write(&row(number)).unwrap();
            }
            let mut cursor = writing.done(6).unwrap();
            assert_eq!(cursor.rows.get_ref().is_rolled(), count == 2_000);
            let mut number = 0;
            loop {
                let rows = cursor.fetch(limits(7, usize::MAX)).unwrap();
                assert!(rows.len() <= 7);
                if rows.is_empty() {
                    break;
                }
                for found in rows {
                    assert_eq!(found, row(number));
                    assert!(matches!(found[2], Value::Float64(zero) if zero.is_sign_negative()));
                    number += 1;
                }
            }
            assert_eq!(number, count);
        }
        // The file has no name.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_portion_ends_with_its_bytes_and_has_one_row_at_least() {
        let mut writing = Writing::new(Path::new(""));
        for number in 0..10 {
            writing.write(&row(number)).unwrap();
        }
        let mut cursor = writing.done(6).unwrap();
        assert_eq!(cursor.fetch(limits(100, 1)).unwrap().len(), 1);
        assert_eq!(cursor.fetch(limits(100, 1_000)).unwrap().len(), 2);
        assert_eq!(cursor.fetch(limits(100, usize::MAX)).unwrap().len(), 7);
    }
}
