//! The ceiling on SQLite: the same statements in a plain loop over its C API, with no driver, no task and no queue.
//!
//! **Invariant**: `unsafe` is here alone. A Rust driver would be measured otherwise, and sqlx moves each statement to another thread.

#![allow(unsafe_code, reason = "SQLite's C API itself is what is measured")]

use std::ffi::{CStr, CString};
use std::ptr;
use std::time::Instant;

use anyhow::{Context as _, bail};
use libsqlite3_sys as ffi;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::Work;
use crate::statements::{CLAIM, ENTER, READ, UPDATE, WRITE, kind};

const AMOUNT_MAX: i64 = 1_000;

/// Claims `count` ids and runs their statements, `batch` of them a transaction. Accounts and amounts are drawn from `seed`. Returns the rate a
/// second.
pub(crate) fn run(
    file: &str,
    count: u64,
    batch: usize,
    work: Work,
    seed: u64,
) -> anyhow::Result<f64> {
    let connection = Connection::open(file)?;
    for pragma in [c"PRAGMA journal_mode = WAL", c"PRAGMA synchronous = FULL"] {
        connection.prepare(pragma)?.step()?;
    }
    let accounts = {
        let mut all = connection.prepare(c"SELECT count(*) FROM accounts")?;
        all.step()?;
        all.integer()
    };
    let prepare = |sql: &str| connection.prepare(&CString::new(sql)?);
    let mut begin = prepare("BEGIN IMMEDIATE")?;
    let mut commit = prepare("COMMIT")?;
    let mut claim = prepare(CLAIM)?;
    let mut update = prepare(UPDATE)?;
    let mut read = prepare(READ)?;
    let mut write = prepare(WRITE)?;
    let mut enter = prepare(ENTER)?;
    let mut random = StdRng::seed_from_u64(seed);
    let begun = Instant::now();
    for number in 0..count {
        if number % batch as u64 == 0 {
            begin.run()?;
        }
        let account = format!("a{}", random.random_range(0..accounts));
        let amount = random.random_range(-AMOUNT_MAX..=AMOUNT_MAX);
        claim.bind_text(1, &format!("c{number}"))?;
        claim.run()?;
        if work == Work::ReadWrite {
            read.bind_text(1, &account)?;
            read.step()?;
            let balance = read.integer() + amount;
            read.reset();
            write.bind_integer(1, balance)?;
            write.bind_text(2, &account)?;
            write.run()?;
            enter.bind_text(1, &account)?;
            enter.bind_integer(2, amount)?;
            enter.bind_text(3, kind(balance))?;
            enter.run()?;
        } else {
            update.bind_integer(1, amount)?;
            update.bind_text(2, &account)?;
            update.run()?;
        }
        if (number + 1) % batch as u64 == 0 || number + 1 == count {
            commit.run()?;
        }
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// An open database file.
struct Connection(*mut ffi::sqlite3);

impl Connection {
    fn open(file: &str) -> anyhow::Result<Self> {
        let name = CString::new(file)?;
        let mut handle = ptr::null_mut();
        let flags = ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_NOMUTEX;
        // SAFETY: the name ends with NUL and lives through the call; `handle` is written by it.
        let code =
            unsafe { ffi::sqlite3_open_v2(name.as_ptr(), &raw mut handle, flags, ptr::null()) };
        // Also a failed open gives a handle, which is to be closed.
        let connection = Self(handle);
        if code != ffi::SQLITE_OK {
            bail!("cannot open `{file}`: {}", connection.error());
        }
        Ok(connection)
    }

    fn error(&self) -> String {
        // SAFETY: the handle is open (or null, which the call takes); the text lives until the next call on it.
        unsafe { CStr::from_ptr(ffi::sqlite3_errmsg(self.0)) }
            .to_string_lossy()
            .into_owned()
    }

    fn prepare(&self, sql: &CStr) -> anyhow::Result<Statement<'_>> {
        let mut handle = ptr::null_mut();
        // SAFETY: the handle is open; the text ends with NUL and lives through the call; `handle` is written by it.
        let code = unsafe {
            ffi::sqlite3_prepare_v2(self.0, sql.as_ptr(), -1, &raw mut handle, ptr::null_mut())
        };
        let statement = Statement {
            handle,
            connection: self,
        };
        statement
            .expect(code, ffi::SQLITE_OK)
            .with_context(|| format!("cannot prepare `{}`", sql.to_string_lossy()))?;
        Ok(statement)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: it is closed once, after its statements, which borrow it.
        unsafe { ffi::sqlite3_close(self.0) };
    }
}

/// A prepared statement of a connection that outlives it.
struct Statement<'a> {
    handle: *mut ffi::sqlite3_stmt,
    connection: &'a Connection,
}

impl Statement<'_> {
    fn expect(&self, code: i32, expected: i32) -> anyhow::Result<()> {
        if code != expected {
            bail!("SQLite: {}", self.connection.error());
        }
        Ok(())
    }

    fn bind_text(&mut self, index: i32, text: &str) -> anyhow::Result<()> {
        let length = i32::try_from(text.len())?;
        // SAFETY: the handle is prepared; with SQLITE_TRANSIENT the text is copied within the call.
        let code = unsafe {
            ffi::sqlite3_bind_text(
                self.handle,
                index,
                text.as_ptr().cast(),
                length,
                ffi::SQLITE_TRANSIENT(),
            )
        };
        self.expect(code, ffi::SQLITE_OK)
    }

    fn bind_integer(&mut self, index: i32, value: i64) -> anyhow::Result<()> {
        // SAFETY: the handle is prepared.
        let code = unsafe { ffi::sqlite3_bind_int64(self.handle, index, value) };
        self.expect(code, ffi::SQLITE_OK)
    }

    /// Goes to the only row.
    fn step(&mut self) -> anyhow::Result<()> {
        // SAFETY: the handle is prepared.
        let code = unsafe { ffi::sqlite3_step(self.handle) };
        // A pragma may answer with a row or without.
        if code == ffi::SQLITE_DONE {
            return Ok(());
        }
        self.expect(code, ffi::SQLITE_ROW)
    }

    /// Returns the first column of the row.
    fn integer(&self) -> i64 {
        // SAFETY: the handle is prepared; without a row the call answers 0.
        unsafe { ffi::sqlite3_column_int64(self.handle, 0) }
    }

    /// Runs a statement without rows to its end.
    fn run(&mut self) -> anyhow::Result<()> {
        // SAFETY: the handle is prepared.
        let code = unsafe { ffi::sqlite3_step(self.handle) };
        self.expect(code, ffi::SQLITE_DONE)?;
        self.reset();
        Ok(())
    }

    fn reset(&mut self) {
        // SAFETY: the handle is prepared. The code repeats what `step` said.
        unsafe { ffi::sqlite3_reset(self.handle) };
    }
}

impl Drop for Statement<'_> {
    fn drop(&mut self) {
        // SAFETY: it is finalized once; a null handle is ignored.
        unsafe { ffi::sqlite3_finalize(self.handle) };
    }
}
