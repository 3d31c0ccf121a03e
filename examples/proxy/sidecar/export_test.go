package sidecar

import "io"

// LogTo writes later lines of the access log to output.
func (p *Proxy) LogTo(output io.Writer) { p.access.SetOutput(output) }
