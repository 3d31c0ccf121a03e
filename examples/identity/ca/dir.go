package ca

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// AnchorsFile is the file with the trust anchors in [Open]'s directory.
const AnchorsFile = "trust-anchors.pem"

// Files of the issuer. AnchorsFile is exported, because users pass it on to proxies.
const (
	issuerFile = "issuer.pem"
	keyFile    = "issuer.key"
)

// Open returns the Authority that is stored in the files trust-anchors.pem, issuer.pem and
// issuer.key of dir. If none of these files exists, Open makes a new Authority for the
// trust domain, and stores it in dir. If only some of them exist, it returns an error.
func Open(dir, domain string) (*Authority, error) {
	// Only all or none of the files make sense. A partial set is probably a mistake, and must not be overwritten.
	missing := 0
	for _, name := range []string{AnchorsFile, issuerFile, keyFile} {
		if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, os.ErrNotExist) {
			missing++
		}
	}
	switch missing {
	case 0:
		return read(dir, domain)
	case 3:
		return create(dir, domain)
	}
	return nil, fmt.Errorf("ca: %s has only some of %s, %s and %s: restore the missing files, or remove the others",
		dir, AnchorsFile, issuerFile, keyFile)
}

// create makes a new Authority and stores it in dir.
func create(dir, domain string) (*Authority, error) {
	f, err := Generate(domain)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	// The files are new, so an interrupted write can be repeated.
	for name, data := range map[string][]byte{AnchorsFile: f.Anchors, issuerFile: f.Issuer, keyFile: f.Key} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
	}
	// Reading the files back checks them.
	return read(dir, domain)
}

// read returns the Authority that is stored in dir.
func read(dir, domain string) (*Authority, error) {
	var files [3][]byte
	for i, name := range []string{AnchorsFile, issuerFile, keyFile} {
		var err error
		if files[i], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
	}
	// Replace checks that the files belong together.
	a := Empty(domain)
	if err := a.Replace(files[0], files[1], files[2]); err != nil {
		return nil, fmt.Errorf("ca: %s, %s or %s in %s (use a new directory for a new issuer): %w",
			AnchorsFile, issuerFile, keyFile, dir, err)
	}
	return a, nil
}
