// Package settings is what a proxy is told: by variables of its environment,
// which are linkerd's where linkerd has one, and by a file.
//
//	LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT=2s ─┐
//	                                            ├─▶ Read ─▶ Settings, or all that is wrong
//	outbound: {connect_timeout: 2s}             ─┘
//
// Variables win over the file. The file is YAML, and a key of it is the name of
// a variable in lower case without its prefix; a mapping stands for the names
// that begin with its key, so that these say the same:
//
//	outbound_connect_timeout: 2s
//
//	outbound:
//	  connect_timeout: 2s
//
// A sequence stands for a list with commas. Unknown keys are errors. Unknown
// variables with one of the prefixes are a warning, see [Environ].
package settings
