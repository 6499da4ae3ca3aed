//! node-cache
