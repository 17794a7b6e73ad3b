//! Lines in the host's log. Those of a run that is rolled back appear at level debug.
//!
//! ```no_run
//! use hapax_guest::log;
//! # let (account, amount) = ("a1", 5);
//! log::info!("credited", account = account, amount = amount);
//! log::warn!("account {account} is overdrawn");
//! ```

pub use crate::bindings::hapax::handler::types::Level;
use crate::host;

/// Writes one line. `fields` are names and values.
pub fn write(level: Level, message: &str, fields: &[(String, String)]) {
    host::log(level, message, fields);
}

/// What the macros call. Not part of the public interface.
#[doc(hidden)]
#[macro_export]
macro_rules! __log {
    ($level:ident, $message:literal $(, $name:ident = $value:expr)* $(,)?) => {
        $crate::log::write(
            $crate::log::Level::$level,
            &::std::format!($message),
            &[$((::std::string::String::from(::core::stringify!($name)), ::std::string::ToString::to_string(&$value))),*],
        )
    };
}

macro_rules! levels {
    ($dollar:tt $($hidden:ident $name:ident $level:ident $doc:literal)*) => {
        $(
            #[doc = $doc]
            ///
            /// The message is a literal and may capture variables (`"account {id}"`); fields follow as `name = value`, each value
            /// written as it displays.
            #[doc(hidden)]
            #[macro_export]
            macro_rules! $hidden {
                ($dollar($dollar rest:tt)*) => { $dollar crate::__log!($level, $dollar($dollar rest)*) };
            }
            #[doc(inline)]
            pub use $hidden as $name;
        )*
    };
}

levels! { $
    __log_trace trace Trace "Writes a line at level trace."
    __log_debug debug Debug "Writes a line at level debug."
    __log_info info Info "Writes a line at level info."
    __log_warn warn Warn "Writes a line at level warn: unexpected, nothing lost."
    __log_error error Error "Writes a line at level error: a person must act."
}
