-- What an attempt at a step has spent, such as tokens and money, as JSON. None of attempts of older programs.
alter table outlast_step_attempts add column spent text;
