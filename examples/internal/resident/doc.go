// Package resident reduces the resident memory of a program.
package resident
