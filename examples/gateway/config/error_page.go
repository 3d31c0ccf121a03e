package config

// ErrorPage is a body for the gateway's own error responses. It is not used for gRPC, where
// responses have no such body.
type ErrorPage struct {
	// Statuses that use this page, such as [502, 503, 504].
	Codes []Status `yaml:"codes" is:"required"`
	// A file with the body.
	File File `yaml:"file" is:"required"`
	// The body's content type.
	ContentType HeaderValue `yaml:"contentType" default:"text/html; charset=utf-8"`
}

// check reports codes that are not those of errors.
func (p *ErrorPage) check(n node) {
	// Other statuses are no errors, and have no page.
	for i, code := range p.Codes {
		if code < 400 {
			n.at("codes").item(i).failf("want the status of an error, 400 to 599")
		}
	}
}
