//! Dead letters as lines of JSON: out of one store, and back into it or another.
//!
//! **Invariant**: what is written is read back byte for byte, whatever a payload or a header holds.

use serde::{Deserialize, Serialize};

use super::{DeadLetters, WHOLE_PAGE, failed, failed_to_change};
use crate::exit::{Cause, CommandError, Exit};
use crate::message::{ComponentDigest, FailureClass, Header, Instant, MessageId, Position, hex};
use crate::store::{
    Attempt, ClaimAs, DeadLetter, LetterState, Restored, StoredDeadLetter, Tx, from_base64,
    instant_from_text, instant_to_text, to_base64,
};

/// The version of the lines. Another one is refused.
const VERSION: u32 = 1;
/// The last year that is written.
const YEAR_MAX: i64 = 294_275;

/// Bytes in JSON: as text if they are UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoded {
    /// They are UTF-8.
    Text(String),
    /// Any bytes.
    Base64(String),
}

impl Encoded {
    fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Base64(to_base64(bytes)),
        }
    }

    fn into_bytes(self) -> Result<bytes::Bytes, String> {
        match self {
            Self::Text(text) => Ok(text.into()),
            Self::Base64(text) => from_base64(&text)
                .map(Into::into)
                .ok_or_else(|| "a `base64` is not base64".to_owned()),
        }
    }
}

/// One dead letter as a line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    hapax_dead_letter: u32,
    number: i64,
    consumer: String,
    handler: String,
    message_id: Option<String>,
    source: String,
    position: String,
    subject: String,
    headers: Vec<(String, Encoded)>,
    content_type: Option<String>,
    payload: Encoded,
    published_at: Option<String>,
    queue_id: Option<String>,
    order_key: Option<String>,
    class: String,
    reason: String,
    component: Option<String>,
    attempts: Vec<RecordedAttempt>,
    dead_at: Option<String>,
    /// The id is claimed as dead.
    claimed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedAttempt {
    attempt: u32,
    at: String,
    class: String,
    error: String,
    component: Option<String>,
}

/// Only to tell a line of another version from one that is damaged.
#[derive(Deserialize)]
struct Version {
    hapax_dead_letter: u32,
}

/// Returns a moment as it is exported and told.
pub fn moment_text(moment: Option<Instant>) -> Option<String> {
    moment.and_then(|moment| instant_to_text(moment, YEAR_MAX).ok())
}

fn moment(text: Option<String>) -> Result<Option<Instant>, String> {
    text.map(|text| instant_from_text(&text).ok_or_else(|| format!("`{text}` is no moment")))
        .transpose()
}

fn digest_text(digest: Option<ComponentDigest>) -> Option<String> {
    digest.map(|ComponentDigest(digest)| hex(&digest))
}

fn digest(text: Option<String>) -> Result<Option<ComponentDigest>, String> {
    text.map(|text| {
        let byte = |place: usize| u8::from_str_radix(text.get(place * 2..place * 2 + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..32).map(byte).collect();
        bytes
            .filter(|_| text.len() == 64)
            .and_then(|bytes| bytes.try_into().ok())
            .map(ComponentDigest)
            .ok_or_else(|| format!("`{text}` is no component's SHA-256"))
    })
    .transpose()
}

fn class(text: &str) -> Result<FailureClass, String> {
    FailureClass::named(text).ok_or_else(|| format!("`{text}` is no class"))
}

impl Record {
    pub(super) fn of(stored: &StoredDeadLetter, state: &LetterState) -> Self {
        let letter = &stored.letter;
        Self {
            hapax_dead_letter: VERSION,
            number: stored.number,
            consumer: letter.consumer.clone(),
            handler: letter.handler.clone(),
            message_id: letter.message_id.as_ref().map(MessageId::to_string),
            source: letter.source.clone(),
            position: letter.position.to_string(),
            subject: letter.subject.clone(),
            headers: letter
                .headers
                .iter()
                .map(|header| (header.name.clone(), Encoded::of(&header.value)))
                .collect(),
            content_type: letter.content_type.clone(),
            payload: Encoded::of(&letter.payload),
            published_at: moment_text(letter.published_at),
            queue_id: letter.queue_id.clone(),
            order_key: letter.order_key.clone(),
            class: letter.class.to_string(),
            reason: letter.reason.clone(),
            component: digest_text(letter.component),
            attempts: stored
                .attempts
                .iter()
                .map(|attempt| RecordedAttempt {
                    attempt: attempt.number,
                    at: attempt.at.clone(),
                    class: attempt.class.to_string(),
                    error: attempt.error.clone(),
                    component: digest_text(attempt.component),
                })
                .collect(),
            dead_at: moment_text(stored.dead_at),
            claimed: state.claim == Some(ClaimAs::Dead) && letter.class != FailureClass::Conflict,
        }
    }

    /// Reads a line. Says what is wrong with it and what to do.
    fn read(line: &[u8]) -> Result<Self, (String, &'static str)> {
        const NO_LETTER: &str = "name a file that `hapax dead-letters export` wrote";
        let version: Version = serde_json::from_slice(line)
            .map_err(|_| ("this is no dead letter".to_owned(), NO_LETTER))?;
        if version.hapax_dead_letter != VERSION {
            let problem = format!(
                "the dead letter has version {}; this binary reads version {VERSION}",
                version.hapax_dead_letter
            );
            return Err((
                problem,
                "import it with the version of hapax that exported it",
            ));
        }
        serde_json::from_slice(line).map_err(|error| {
            let text = error.to_string();
            let problem = text
                .rsplit_once(" at line ")
                .map_or(text.as_str(), |(problem, _)| problem);
            (problem.to_owned(), NO_LETTER)
        })
    }

    fn into_letter(self) -> Result<(StoredDeadLetter, bool), String> {
        let stored = StoredDeadLetter {
            number: self.number,
            letter: DeadLetter {
                consumer: self.consumer,
                handler: self.handler,
                message_id: self.message_id.map(MessageId::new).transpose()?,
                source: self.source,
                position: Position(self.position),
                subject: self.subject,
                headers: self
                    .headers
                    .into_iter()
                    .map(|(name, value)| {
                        Ok(Header {
                            name,
                            value: value.into_bytes()?,
                        })
                    })
                    .collect::<Result<_, String>>()?,
                content_type: self.content_type,
                payload: self.payload.into_bytes()?,
                published_at: moment(self.published_at)?,
                queue_id: self.queue_id,
                order_key: self.order_key,
                class: class(&self.class)?,
                reason: self.reason,
                component: digest(self.component)?,
            },
            attempts: self
                .attempts
                .into_iter()
                .map(|attempt| {
                    Ok(Attempt {
                        number: attempt.attempt,
                        at: attempt.at,
                        class: class(&attempt.class)?,
                        error: attempt.error,
                        component: digest(attempt.component)?,
                    })
                })
                .collect::<Result<_, String>>()?,
            dead_at: moment(self.dead_at)?,
        };
        Ok((stored, self.claimed))
    }
}

/// What became of letters that were to be put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Imported {
    /// They are back.
    pub imported: u64,
    /// Of these, under another number.
    pub renumbered: u64,
    /// Left out: their letters are there.
    pub there_already: u64,
    /// Left out: their messages were processed.
    pub processed_already: u64,
}

impl DeadLetters<'_> {
    /// Hands each letter to `write`, in the order of numbers. Returns how many there were; those that are gone are left out.
    ///
    /// # Errors
    /// If the store cannot be read; and what `write` says.
    pub async fn export(
        &mut self,
        numbers: &[i64],
        mut write: impl FnMut(&Record) -> Result<(), CommandError>,
    ) -> Result<u64, CommandError> {
        let mut exported = 0;
        for page in numbers.chunks(WHOLE_PAGE) {
            let states = self.connection.letter_states(page).await.map_err(failed)?;
            for stored in self.connection.letters(page).await.map_err(failed)? {
                // One that went between the two looks is left out.
                if let Some(state) = states.iter().find(|state| state.number == stored.number) {
                    write(&Record::of(&stored, state))?;
                    exported += 1;
                }
            }
        }
        Ok(exported)
    }

    /// Puts letters back, all of them in one transaction; `lines` are numbered from 1 in `file`, as it is shown. Tells `progress` how many
    /// were read.
    ///
    /// # Errors
    /// A line that can't be read, or a store that can't be written: nothing was put back.
    pub async fn import(
        self,
        file: &str,
        lines: impl Iterator<Item = std::io::Result<Vec<u8>>>,
        mut progress: impl FnMut(u64),
    ) -> Result<Imported, CommandError> {
        let mut tx = Tx::begin(self.connection).await.map_err(failed_to_change)?;
        let mut imported = Imported::default();
        for (index, line) in lines.enumerate() {
            let number = index + 1;
            let refused = |problem: String, hint: Option<&str>| {
                let problem = format!("{file}, line {number}: {problem}");
                CommandError::new(Exit::Failed, problem, hint)
                    .because(Cause::Malformed)
                    .after("nothing was imported")
            };
            let line = match line {
                Ok(line) => line,
                Err(error) => return Err(refused(format!("cannot be read: {error}"), None)),
            };
            if line.trim_ascii().is_empty() {
                continue;
            }
            let (stored, is_claimed) = Record::read(&line)
                .map_err(|(problem, hint)| refused(problem, Some(hint)))?
                .into_letter()
                .map_err(|problem| refused(problem, None))?;
            match tx
                .restore(&stored, is_claimed)
                .await
                .map_err(failed_to_change)?
            {
                Restored::As(number) => {
                    imported.imported += 1;
                    imported.renumbered += u64::from(number != stored.number);
                }
                Restored::IsThere => imported.there_already += 1,
                Restored::Succeeded => imported.processed_already += 1,
            }
            progress(number as u64);
        }
        tx.commit()
            .await
            .result
            .map_err(|error| failed_to_change(error.into()))?;
        Ok(imported)
    }
}
