package profiles

// Policy holds the name and labels of a policy's resource, and the profile for connections that
// are not HTTP. linkerd's client policies provide these, but its service profiles do not.
// NewPolicies in package profiles/linkerd makes profiles with a Policy.
type Policy struct {
	// name of the resource to which the policy is attached: "Service.default.web:80"
	Name   string
	Labels map[string]string // labels of this resource, for metrics and tap ("parent_name")

	// Connections is the profile for connections that are not HTTP. A server of connections uses
	// it instead of the requests' profile. nil means that the requests' profile also applies to
	// connections.
	Connections *Profile

	// ServerNames reports whether the routes of Connections select TLS connections. A [Host] in
	// these routes applies to the server name in the ClientHello.
	ServerNames bool
}

// labels returns the labels of p, which may be nil.
func (p *Policy) labels() map[string]string {
	if p == nil {
		return nil
	}
	return p.Labels
}
