// Package logs writes the log of a proxy in one of the two formats of linkerd's proxy. A
// filter by level and target can be changed while the proxy runs.
//
//	slog.Logger ─▶ handler ── Level ──▶ [  0.001234s]  INFO ThreadId(01) linkerd_app: message k=v
//	                           ▲
//	             PUT /proxy-log-level "warn,linkerd=debug"
//
// A target is the name of the part of the proxy that writes a record.
// logger.With(Target(name)) sets the target of a logger. The default is [DefaultTarget],
// which begins with linkerd, because existing filters contain linkerd=info. Other
// attributes with the key "target" are fields of the record.
package logs
