//! `hapax new`.

use std::path::PathBuf;

use clap::Args;

use super::print;
use crate::app::{self, Language};
use crate::exit::CommandError;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The handler's name, or the path of the new folder, whose last part is the name
    #[arg(value_name = "NAME")]
    folder: PathBuf,
    /// The language
    #[arg(long = "lang", value_enum, value_name = "LANGUAGE")]
    language: LanguageWord,
}

/// A language as it is written on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LanguageWord(pub(super) Language);

impl clap::ValueEnum for LanguageWord {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [LanguageWord; Language::ALL.len()] = {
            let mut words = [LanguageWord(Language::Rust); Language::ALL.len()];
            let mut index = 0;
            while index < words.len() {
                words[index] = LanguageWord(Language::ALL[index]);
                index += 1;
            }
            words
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.0.word()).help(self.0.name()))
    }
}

pub(super) fn new(arguments: &Arguments) -> Result<(), CommandError> {
    let made = app::new(&arguments.folder, arguments.language.0)?;
    let folder = made.folder.display();
    let mut text = format!(
        "{folder}: the handler `{}` in {}\n",
        made.name,
        arguments.language.0.name()
    );
    for file in &made.files {
        text.push_str(&format!("  {file}\n"));
    }
    let quoted = folder.to_string();
    let quoted =
        if quoted.contains(|letter: char| !(letter.is_alphanumeric() || "-_./".contains(letter))) {
            format!("'{}'", quoted.replace('\'', "'\\''"))
        } else {
            quoted
        };
    text.push_str(&format!(
        "next:\n  cd {quoted}\n  hapax build\n  hapax test\n  hapax send payments --envelope --lines messages.jsonl && hapax run --until-idle && hapax status\n"
    ));
    print(&text)
}
