// Command nethttp is the smallest program that uses net/http's client.
package main

import "net/http"

func main() { _, _ = http.Get("http://web.example/") } //nolint:noctx,bodyclose // it only shows the size
