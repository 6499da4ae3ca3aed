//! One archive of what a fleet says of itself.

use std::io::{self, Write};

use flate2::{Compression, write::GzEncoder};

/// Writes files of one time, in seconds since 1970, as a gzipped tar archive, below one folder.
///
/// # Errors
/// Those of `to`.
pub fn write(
    to: impl Write,
    folder: &str,
    second: u64,
    files: &[(String, Vec<u8>)],
) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(to, Compression::default()));
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(second);
        let path = format!("{folder}/{name}");
        archive.append_data(&mut header, path, &**content)?;
    }
    archive.into_inner()?.finish()?.flush()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let files = [
            ("shards.json".to_owned(), b"{}".to_vec()),
            ("a/metrics.txt".to_owned(), vec![b'x'; 2000]),
        ];
        let mut bytes = Vec::new();
        write(&mut bytes, "dump", 7, &files).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&*bytes));
        let read = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (name, content)
        });
        let expected = files.map(|(name, content)| (format!("dump/{name}"), content));
        assert_eq!(read.collect::<Vec<_>>(), expected);
    }
}
