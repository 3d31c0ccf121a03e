// Package settings reads a proxy's configuration from environment variables and a file. It
// understands the variables of linkerd's proxy, and adds a few.
//
//	LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT=2s ─┐
//	                                            ├─▶ Read ─▶ Settings, or all errors
//	outbound: {connect_timeout: 2s}             ─┘
//
// The file is in YAML. Its keys are variable names in lower case without their prefix. If a
// variable is set in both, the environment wins. Names with a common beginning may be nested, so
// these two are equal:
//
//	outbound_connect_timeout: 2s
//
//	outbound:
//	  connect_timeout: 2s
//
// A comma-separated list may be written as a YAML sequence. Unknown keys are errors. Unknown
// environment variables with one of the prefixes only cause a warning, see [Environ].
package settings
