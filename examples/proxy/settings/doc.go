// Package settings reads the configuration of a proxy from environment variables and a
// file. The variables are those of linkerd's proxy, and a few of our own.
//
//	LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT=2s ─┐
//	                                            ├─▶ Read ─▶ Settings, or all problems
//	outbound: {connect_timeout: 2s}             ─┘
//
// Variables win over the file. The file is YAML. A key is the name of a variable in
// lower case without its prefix. A mapping contains the names that begin with its key,
// so these two mean the same:
//
//	outbound_connect_timeout: 2s
//
//	outbound:
//	  connect_timeout: 2s
//
// A sequence is a list with commas. Unknown keys are errors. Unknown
// variables with one of the prefixes are a warning, see [Environ].
package settings
