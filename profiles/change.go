package profiles

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/gotower/gotower/layer"
)

// Redirect answers requests with another place to ask. What is empty stays as
// it was in the request: the host, the port, the path and the query that it was
// sent with. A request that would be sent to where it came is forwarded
// instead, as by linkerd's proxy, since nothing else would ever answer it.
//
// Location is absolute, whatever form the request had; a port that is the
// scheme's own is left out. A request that does not say its host, or says none
// that can be put in there, gets status 400 if Host does not say one. A gRPC
// request, whose clients follow no redirects, gets the status NOT_FOUND, as in
// linkerd, with the place in its message.
type Redirect struct {
	Status int    // 301, 302, 303, 307 or 308; 0 is 302. A POST stays one with 307 and 308
	Scheme string // "http" or "https"
	Host   string // a DNS name or an IP address, without a port
	Port   uint16 // 0 is that of the request, or none where Scheme is given

	// Path takes the place of the whole path; a query in it takes the place of
	// the request's, which stays otherwise. Or else NewPrefix takes the place of
	// the segments OldPrefix at its beginning: "/v1/books" with "/v1" and "/v2"
	// becomes "/v2/books"; "/v10" stays. They are written as they are sent, with
	// % where it is needed.
	Path                 string
	OldPrefix, NewPrefix string
}

// Validate says why a Router would leave the redirect out, and forward the
// requests, or returns nil.
func (r Redirect) Validate() error {
	switch {
	case r.Status != 0 && !slices.Contains([]int{301, 302, 303, 307, 308}, r.Status):
		return fmt.Errorf("redirect: status %d is not 301, 302, 303, 307 or 308", r.Status)
	case r.Scheme != "" && r.Scheme != "http" && r.Scheme != "https":
		return fmt.Errorf("redirect: scheme %q is not http or https", r.Scheme)
	case r.Host != "" && !isName(r.Host) && !isAddress(r.Host):
		return fmt.Errorf("redirect: host %q is not a DNS name or an IP address (a port has a field of its own)", r.Host)
	case r.Scheme+r.Host+r.Path+r.OldPrefix+r.NewPrefix == "" && r.Port == 0:
		return errors.New("redirect: nothing says where to")
	}
	if err := r.validatePath(); err != nil {
		return fmt.Errorf("redirect: %w", err)
	}
	return nil
}

func (r Redirect) validatePath() error {
	switch {
	case r.Path != "" && r.OldPrefix+r.NewPrefix != "":
		return errors.New("there is a path, and a prefix too")
	case r.NewPrefix != "" && r.OldPrefix == "":
		return fmt.Errorf("new prefix %q without an old one", r.NewPrefix)
	}
	path, query, _ := strings.Cut(r.Path, "?")
	for _, p := range []string{path, r.OldPrefix, r.NewPrefix} {
		if p != "" && p[0] != '/' || path == "" && r.Path != "" {
			return fmt.Errorf("path %q does not begin with /", p)
		}
		if string(appendEscaped(nil, p, true)) != p {
			return fmt.Errorf("path %q has a character that must be written with %%", p)
		}
	}
	if string(appendEscaped(nil, query, false)) != query {
		return fmt.Errorf("query %q has a character that must be written with %%", query)
	}
	return nil
}

// status is that of the answer.
func (r Redirect) status() int {
	if r.Status == 0 {
		return 302
	}
	return r.Status
}

// isAddress reports whether s is an IP address that others can reach, too.
func isAddress(s string) bool {
	addr, err := netip.ParseAddr(s)
	return err == nil && addr.Zone() == ""
}

// changeProblems returns an error for each piece of the route's answers and
// header changes that is left out.
func (r Route) changeProblems() []error {
	var problems []error
	_, request := r.RequestHeader.Valid()
	for _, err := range request {
		problems = append(problems, fmt.Errorf("request header: %w", err))
	}
	_, response := validResponse(r.ResponseHeader)
	for _, err := range response {
		problems = append(problems, fmt.Errorf("response header: %w", err))
	}
	if r.Redirect != nil {
		if err := r.Redirect.Validate(); err != nil {
			problems = append(problems, err)
		}
	}
	_, faults := validFaults(r.Faults)
	return append(problems, faults...)
}

// validChanges is the route without those pieces.
func (r Route) validChanges() Route {
	r.RequestHeader, _ = r.RequestHeader.Valid()
	r.ResponseHeader, _ = validResponse(r.ResponseHeader)
	if r.Redirect != nil && r.Redirect.Validate() != nil {
		r.Redirect = nil
	}
	r.Faults, _ = validFaults(r.Faults)
	return r
}

// validResponse is Valid for a response, which has no Host.
func validResponse(c layer.HeaderMutation) (layer.HeaderMutation, []error) {
	c, problems := c.Valid()
	c.Set = slices.DeleteFunc(c.Set, func(f layer.HeaderField) bool {
		host := strings.EqualFold(f.Name, "host")
		if host {
			problems = append(problems, fmt.Errorf("set %q: a response has none", f.Name))
		}
		return host
	})
	return c, problems
}
