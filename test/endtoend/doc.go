// Package endtoend tests clients of all protocols, and the sidecar, next to endpoints that fail or
// at which nothing listens.
package endtoend
