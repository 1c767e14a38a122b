//! What a script may use up.

use std::time::Duration;

/// What a script may use up. Memory is not counted exactly: the worst script that we know, within all defaults, takes about 50 MiB
/// while it runs, on its own thread, of which there are so many as `CodeLimits::long_runs` of wallaby-chain says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptLimits {
    /// Bytes of the text of a script. Default 64 KiB.
    pub source: usize,
    /// Steps of a function that runs where answers are sent: each part of an expression is about one. One that needs more is run
    /// again elsewhere. Default 10,000, and not longer than a millisecond.
    pub brief: u64,
    /// Steps of any function. Default 1 million.
    pub operations: u64,
    /// How long any function may run: some steps take longer than others. It is looked at between steps. Default one second.
    pub time: Duration,
    /// Functions that have called each other. Default 8.
    pub calls: usize,
    /// Expressions and blocks inside each other in one function. Default 32.
    pub depth: usize,
    /// Variables of a function, parameters included. Default 16.
    pub variables: usize,
    /// Arguments of a call. Default 8.
    pub arguments: usize,
    /// Bytes of text in one value, all strings in it together. Default 64 KiB.
    pub text: usize,
    /// Elements of one value, arrays in arrays together, and as many of maps. Default 1,024.
    pub elements: usize,
    /// Bytes of what a function says: arguments, states and the end together. Bytes that scripts have as handles count here only.
    /// Default 16 MiB.
    pub output: usize,
    /// Bytes of the stack on which a function runs that is not brief. Default 32 MiB, of which few are ever touched.
    pub stack: usize,
}

impl Default for ScriptLimits {
    fn default() -> Self {
        Self {
            source: 64 << 10,
            brief: 10_000,
            operations: 1_000_000,
            time: Duration::from_secs(1),
            calls: 8,
            depth: 32,
            variables: 16,
            arguments: 8,
            text: 64 << 10,
            elements: 1024,
            output: 16 << 20,
            stack: 32 << 20,
        }
    }
}
