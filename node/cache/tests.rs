mod api;
mod course;
mod server;
mod store;
mod watch;
