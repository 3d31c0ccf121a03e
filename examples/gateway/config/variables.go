package config

import (
	"regexp"
	"slices"
	"strings"
)

// RequestVariables are the variables that header values may contain in braces, such as
// {client_ip}:
//
//	client_ip   the address of the client, behind trustedProxies
//	host        the host of the request, without the port
//	listener    the name of the listener
//	method      the method of the request
//	path        the path of the request, percent-encoded, without the query
//	request_id  32 random hexadecimal digits, the same for the request and its response
//	route       the name of the route
//	scheme      http or https
func RequestVariables() []string {
	return []string{"client_ip", "host", "listener", "method", "path", "request_id", "route", "scheme"}
}

// requestVariable matches a variable in a header value.
var requestVariable = regexp.MustCompile(`\{[a-z_]+\}`)

func (v HeaderValue) hasVariables() bool { return requestVariable.MatchString(string(v)) }

// checkVariables reports unknown variables in a header value.
func (v HeaderValue) checkVariables(n node) {
	for _, name := range requestVariable.FindAllString(string(v), -1) {
		if !slices.Contains(RequestVariables(), strings.Trim(name, "{}")) {
			n.failf("unknown variable %s: want one of %s", name, strings.Join(RequestVariables(), ", "))
		}
	}
}

// Expand passes the parts of v between variables to text, and the variables' names to variable.
func (v HeaderValue) Expand(text, variable func(string)) {
	end := 0
	// Each span is the start and the end of a variable with its braces.
	for _, span := range requestVariable.FindAllStringIndex(string(v), -1) {
		text(string(v[end:span[0]]))
		variable(string(v[span[0]+1 : span[1]-1]))
		end = span[1]
	}
	text(string(v[end:]))
}
