// Package settings reads the configuration of a proxy from environment variables and a
// file. The variables are those of linkerd's proxy, and a few more.
//
//	LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT=2s ─┐
//	                                            ├─▶ Read ─▶ Settings, or all errors
//	outbound: {connect_timeout: 2s}             ─┘
//
// The file is in YAML. If a variable is set in both, the environment variable is used. A
// key of the file is the name of a variable in lower case without its prefix. Names with a
// common beginning may be written as a nested mapping, so these two are equal:
//
//	outbound_connect_timeout: 2s
//
//	outbound:
//	  connect_timeout: 2s
//
// A variable with a list of values, separated by commas, may be a YAML sequence. An unknown
// key is an error. An unknown environment variable with one of the prefixes is a warning,
// see [Environ].
package settings
