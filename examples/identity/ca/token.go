package ca

import (
	"bytes"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
)

// TokenFile returns a [Check] that accepts the token in the file at path, for any name. The
// Check reads the file for each request.
func TokenFile(path string) Check {
	return func(_ context.Context, name string, token []byte) error {
		if err := compare(path, token); err != nil {
			return fmt.Errorf("%q is not certified: %w", name, err)
		}
		return nil
	}
}

// TokenDir returns a [Check] that requires a different token for each name. The token for a
// name is in the file [TokenName] of dir. The Check reads the file for each request.
func TokenDir(dir string) Check {
	return func(_ context.Context, name string, token []byte) error {
		if err := compare(filepath.Join(dir, TokenName(name)), token); err != nil {
			return fmt.Errorf("%q is not certified: %w", name, err)
		}
		return nil
	}
}

// TokenName returns the name of the file with the token for name. Characters that a file name
// cannot contain, such as the slashes in a URI, are escaped.
func TokenName(name string) string { return url.PathEscape(name) }

// compare returns an error unless the file at path contains token. White space at the beginning
// and the end of both is ignored. The comparison takes constant time.
func compare(path string, token []byte) error {
	want, err := os.ReadFile(path)
	switch {
	// The errors do not name the file, because they are sent to the client.
	case errors.Is(err, os.ErrNotExist):
		return errors.New("no token is stored for it")
	case err != nil:
		return errors.New("its stored token cannot be read")
	}
	want = bytes.TrimSpace(want)
	token = bytes.TrimSpace(token)
	switch {
	// An empty file must not accept an empty token.
	case len(want) == 0:
		return errors.New("its stored token is empty")
	case subtle.ConstantTimeCompare(want, token) != 1:
		return errors.New("the token does not match")
	}
	return nil
}
