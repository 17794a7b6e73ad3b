//! The binary: hands over to the command line and maps a panic to its exit code.

use std::process::ExitCode;

use hapax::exit::Exit;

fn main() -> ExitCode {
    hapax::allocator::give_back_what_is_freed();
    let exit = std::panic::catch_unwind(hapax::cli::main).unwrap_or(Exit::Bug);
    ExitCode::from(exit)
}
