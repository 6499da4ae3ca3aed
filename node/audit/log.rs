//! The file.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::AuditRecord;

/// Bytes read at once.
const CHUNK: usize = 1 << 20;

/// Reads an audit log as it grows.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    offset: u64,
    rest: Vec<u8>,
}

impl AuditLog {
    /// From the beginning of the file.
    pub fn open(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            offset: 0,
            rest: Vec::new(),
        }
    }

    /// Hands each request that was logged since the last call to `each`, in the order of the file;
    /// a line that is still being written waits for the next call.
    pub fn read(&mut self, mut each: impl FnMut(AuditRecord)) -> Result<()> {
        let what = || format!("reading the audit log {}", self.path.display());
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error).with_context(what),
        };
        file.seek(SeekFrom::Start(self.offset)).with_context(what)?;
        let mut chunk = vec![0; CHUNK];
        loop {
            let read = file.read(&mut chunk).with_context(what)?;
            if read == 0 {
                return Ok(());
            }
            self.offset += read as u64;
            self.rest.extend_from_slice(&chunk[..read]);
            let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
                continue;
            };
            let following = self.rest.split_off(end + 1);
            let lines = std::mem::replace(&mut self.rest, following);
            for line in lines
                .split(|byte| *byte == b'\n')
                .filter(|line| !line.is_empty())
            {
                let record = serde_json::from_slice(line).with_context(|| {
                    format!("a line of the audit log: {}", String::from_utf8_lossy(line))
                })?;
                each(record);
            }
        }
    }

    /// All that was logged since the last call.
    pub fn records(&mut self) -> Result<Vec<AuditRecord>> {
        let mut records = Vec::new();
        self.read(|record| records.push(record))?;
        Ok(records)
    }
}
