// Package logs writes a proxy's log in one of the two formats of linkerd's proxy. Its filter, which
// selects records by level and target, can be changed while the proxy runs.
//
//	slog.Logger ─▶ handler ── Level ──▶ [  0.001234s]  INFO ThreadId(01) linkerd_app: message k=v
//	                           ▲
//	             PUT /proxy-log-level "warn,linkerd=debug"
//
// A target names the part of the proxy that writes a record. Use logger.With(Target(name)) to set a
// logger's target. The default is [DefaultTarget]. It begins with linkerd because existing filters
// contain linkerd=info. Other attributes with the key "target" are logged as fields.
package logs
