// Package logs writes a proxy's log in linkerd's two formats, and filters it by
// level and target while it runs.
//
//	slog.Logger ─▶ handler ── Level ──▶ [  0.001234s]  INFO ThreadId(01) linkerd_app: message k=v
//	                           ▲
//	              PUT /proxy-log-level "warn,linkerd=debug"
//
// The target of a record is set by logger.With(Target(name)). The default is
// DefaultTarget, linkerd's, because existing filters begin with linkerd=info. An attribute
// "target" of a layer is a destination, and a field of the record.
package logs
