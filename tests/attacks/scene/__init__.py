"""Users, victims, attackers and what is measured of them."""
