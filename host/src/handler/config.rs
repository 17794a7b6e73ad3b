//! `hapax:handler/config`: the handler's own table of the configuration.

use super::bindings::hapax::handler::config;
use super::state::State;

impl config::Host for State {
    async fn get(&mut self, name: String) -> wasmtime::Result<Option<String>> {
        Ok(self.options.config.get(&name).cloned())
    }

    async fn names(&mut self) -> wasmtime::Result<Vec<String>> {
        Ok(self.options.config.keys().cloned().collect())
    }
}
