// Package usertimeout sets TCP_USER_TIMEOUT (RFC 5482).
package usertimeout
