//! Write hapax message handlers in Rust.
//!
//! A handler is a function from a [`Message`] to `Ok` or a [`Failure`], made known by [`handler!`]. The host calls it inside the
//! database transaction in which it has claimed the message's id: all that the handler writes with [`sql`] and publishes with [`outbox`]
//! is committed together with that claim, once, or not at all.
//!
//! ```no_run
//! use hapax_guest::{Failure, Message, params, sql};
//!
//! #[derive(serde::Deserialize)]
//! struct Credit {
//!     account: String,
//!     amount: i64,
//! }
//!
//! fn handle(message: Message) -> Result<(), Failure> {
//!     let credit: Credit = message.json()?;
//!     let updated = sql::execute(
//!         "UPDATE accounts SET balance = balance + $1 WHERE id = $2",
//!         &params![credit.amount, credit.account],
//!     )?;
//!     if updated == 0 {
//!         return Err(Failure::reject(format!("account `{}` does not exist", credit.account)));
//!     }
//!     Ok(())
//! }
//!
//! hapax_guest::handler!(handle);
//! # fn main() {}
//! ```
//!
//! A handler that should take many messages a call, so that one statement serves them all, is made known by [`batch_handler!`] ([`batch`]).
//!
//! **Invariant**: nothing here keeps state between two calls; the host makes a fresh instance for each.
//! **Invariant**: nothing here imports WASI; a handler reaches only what the package `hapax:handler` gives it.

#[cfg(all(target_arch = "wasm32", feature = "allocator"))]
mod allocator;
pub mod batch;
pub mod config;
mod convert;
mod decode;
mod error;
mod failure;
mod host;
mod instant;
pub mod log;
mod message;
pub mod outbox;
pub mod sql;
mod value;

#[doc(hidden)]
#[allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    reason = "generated from `wit/` by wit-bindgen"
)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "wit",
        world: "handler",
        pub_export_macro: true,
        export_macro_name: "export_handler",
        default_bindings_module: "hapax_guest::bindings",
        additional_derives: [PartialEq],
    });
}

#[doc(hidden)]
#[allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    reason = "generated from `wit/` by wit-bindgen"
)]
pub mod batch_bindings {
    wit_bindgen::generate!({
        path: "wit",
        world: "batch-handler",
        pub_export_macro: true,
        export_macro_name: "export_batch_handler",
        default_bindings_module: "hapax_guest::batch_bindings",
        with: {
            "hapax:handler/types@0.1.0": crate::bindings::hapax::handler::types,
            "hapax:handler/sql@0.1.0": crate::bindings::hapax::handler::sql,
            "hapax:handler/config@0.1.0": crate::bindings::hapax::handler::config,
        },
    });
}

pub use bindings::hapax::handler::types::{Header, Instant, Message};
pub use convert::FromValue;
pub use error::{Code, Error};
pub use failure::{Failure, OrFail};
pub use value::{Decimal, Json, Null, ToValue, Uuid};

/// Makes a function the handler of this component.
///
/// The function takes a [`Message`] and returns `Result<(), Failure>`. Use it once in a crate of type `cdylib`.
#[macro_export]
macro_rules! handler {
    ($handle:path) => {
        #[allow(
            unsafe_code,
            reason = "the functions that a component exports have unsafe attributes"
        )]
        const _: () = {
            struct Handler;

            impl $crate::bindings::Guest for Handler {
                fn handle(
                    message: $crate::Message,
                ) -> ::core::result::Result<(), $crate::bindings::Failure> {
                    $crate::__run(message, $handle)
                }
            }

    $crate::bindings::export_handler!(Handler with_types_in $crate::bindings);
        };
    };
}

/// Lists the parameters of a statement: `params![account, 5, Some("text"), Null]`.
///
/// Takes any number of values that are [`ToValue`], by reference, and makes a `Vec<sql::Value>` of them.
#[macro_export]
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        ::std::vec::Vec::<$crate::sql::Value>::from([$($crate::ToValue::to_value(&$value)),*])
    };
}

/// What [`handler!`] calls. Not part of the public interface.
#[doc(hidden)]
pub fn __run(
    message: Message,
    handle: fn(Message) -> Result<(), Failure>,
) -> Result<(), bindings::Failure> {
    host::begin(|_, level, message, fields| {
        bindings::hapax::handler::log::write(level, message, fields);
    });
    handle(message).map_err(Failure::into_wit)
}

/// Compiles the handler in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
