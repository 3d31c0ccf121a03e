// Package logs writes a proxy's log in linkerd's two formats, and filters it by
// level and target while it runs.
//
//	slog.Logger ─▶ handler ── Level ──▶ [  0.001234s]  INFO ThreadId(01) linkerd_app: message k=v
//	                           ▲
//	              PUT /proxy-log-level "warn,linkerd=debug"
//
// The target of a record is what its logger was given by With(Target(name)),
// else DefaultTarget, which is that of linkerd: its default filter, and those
// that people have written for it, begin with linkerd=info. What layers log as
// "target" is a destination, and a field of the record.
package logs
